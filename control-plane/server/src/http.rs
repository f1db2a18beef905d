//! The HTTP API: one file an operation, `<noun>/<verb>.rs`. This file reads as its table of contents.

mod aliases;
mod config;
mod deployments;
mod docs;
mod events;
mod extract;
mod keys;
pub(crate) mod middleware;
mod models;
mod nodes;
mod platform_keys;
mod price_books;
pub(crate) mod problem;
mod read;
mod schema;
mod signing_keys;
mod system;
mod tenants;
mod usage;
mod versions;
mod write;

use std::sync::Arc;

use axum::Router;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_schemas::clock::Clock;

use crate::auth::Signer;
use crate::metrics::Metrics;
use crate::publisher::{Board, Published};
use crate::store::Store;

/// What every operation is handed.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) signer: Signer,
    pub(crate) board: Board,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    /// The database has been there and its schema is this program's.
    pub(crate) prepared: watch::Receiver<bool>,
    /// Set once the process is asked to stop.
    pub(crate) stopping: CancellationToken,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
    pub(crate) in_progress: Arc<Semaphore>,
}

fn operations() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(docs::Contract::openapi())
        .routes(routes!(tenants::create::create_tenant, tenants::list::list_tenants))
        .routes(routes!(tenants::get::get_tenant, tenants::update::update_tenant))
        .routes(routes!(keys::create::create_key, keys::list::list_keys))
        .routes(routes!(keys::get::get_key, keys::revoke::revoke_key))
        .routes(routes!(platform_keys::create::create_platform_key, platform_keys::list::list_platform_keys))
        .routes(routes!(platform_keys::revoke::revoke_platform_key))
        .routes(routes!(models::create::create_model, models::list::list_models))
        .routes(routes!(models::get::get_model))
        .routes(routes!(versions::create::create_version, versions::list::list_versions))
        .routes(routes!(versions::get::get_version))
        .routes(routes!(aliases::create::create_alias, aliases::list::list_aliases))
        .routes(routes!(aliases::get::get_alias, aliases::delete::delete_alias))
        .routes(routes!(aliases::retarget::retarget_alias))
        .routes(routes!(deployments::create::create_deployment, deployments::list::list_deployments))
        .routes(routes!(
            deployments::get::get_deployment,
            deployments::update::update_deployment,
            deployments::delete::delete_deployment
        ))
        .routes(routes!(price_books::create::create_price_book, price_books::list::list_price_books))
        .routes(routes!(price_books::get::get_price_book))
        .routes(routes!(price_books::set_price::set_price, price_books::list_prices::list_prices))
        .routes(routes!(signing_keys::list::list_signing_keys))
        .routes(routes!(signing_keys::get::get_signing_key))
        .routes(routes!(signing_keys::rotate::rotate_signing_keys))
        .routes(routes!(signing_keys::retire::retire_signing_key))
        .routes(routes!(nodes::list::list_nodes))
        .routes(routes!(nodes::get::get_node, nodes::retire::retire_node))
        .routes(routes!(config::get::get_config))
        .routes(routes!(events::list::list_events))
        .routes(routes!(usage::requests::get_usage))
        .routes(routes!(usage::costs::get_costs))
        .routes(routes!(system::jwks::jwks))
        .routes(routes!(system::health::healthz))
        .routes(routes!(system::health::readyz))
        .routes(routes!(system::metrics::metrics))
        .routes(routes!(system::openapi::openapi))
}

/// The contract as YAML: what stands in `openapi.yaml`.
pub(crate) fn openapi_yaml() -> String {
    operations().to_openapi().to_yaml().expect("a document made of plain data always serialises")
}

/// Everything that is served.
pub(crate) fn router(app: App) -> Router {
    let (router, contract) = operations().split_for_parts();
    let router = router
        .fallback(middleware::not_found)
        .method_not_allowed_fallback(middleware::method_not_allowed)
        .merge(docs::pages(contract));
    middleware::around(router, app.clone()).with_state(app)
}
