//! `GET /api/v1/config`

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::schema::ReadProblems;

/// One resource type as it is published.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedResource {
    /// Which.
    #[schema(example = "keys")]
    resource_type: String,
    /// `sha256:…` of its bytes.
    digest: String,
    /// Its length.
    length_bytes: usize,
    /// Why a newer state of it is withheld, if one is.
    withheld: Option<String>,
}

/// What is published.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedConfig {
    /// Epoch and position of the last event that it includes.
    #[schema(example = "1790000000.17")]
    revision: String,
    /// Its resource types.
    resources: Vec<PublishedResource>,
}

/// Show the revision and digests of the config that nodes are sent.
#[utoipa::path(get, path = "/api/v1/config", tag = "nodes",
    responses((status = 200, body = PublishedConfig), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_config(_: PlatformAdmin, State(app): State<App>) -> Json<PublishedConfig> {
    let published = app.published.borrow().clone();
    let resources = published.sets.iter().map(|set| PublishedResource {
        resource_type: set.kind.as_str().to_owned(),
        digest: set.digest.clone(),
        length_bytes: set.json.len(),
        withheld: set.withheld.clone(),
    });
    Json(PublishedConfig { revision: published.revision.to_string(), resources: resources.collect() })
}
