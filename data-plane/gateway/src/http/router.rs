//! All routes, and what every answer has in common.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;
use weir_schemas::clock::Clock;
use weir_schemas::ids::RequestId;

use super::{chat_completions, completions, health, models, openapi, serving};
use crate::error::GatewayError;
use crate::idempotency::Idempotency;
use crate::indexed_config::CurrentConfig;
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What the handlers share.
pub(crate) struct Edge {
    pub(crate) clock: Clock,
    pub(crate) config: Arc<CurrentConfig>,
    pub(crate) pipeline: Pipeline,
    pub(crate) idempotency: Arc<Idempotency>,
    pub(crate) metrics: Metrics,
    /// The text of `/metrics`, for the whole process.
    pub(crate) metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
    pub(crate) max_body_bytes: usize,
    /// Owns what outlives a handler.
    pub(crate) tasks: TaskTracker,
    /// Set first when the gateway is asked to stop: it says that it is not ready.
    pub(crate) stopping: AtomicBool,
    /// Set after that: it takes no new request.
    pub(crate) refusing: AtomicBool,
}

impl Edge {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edge").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The id of a request, made when it arrives; `x-request-id` of every answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestName(pub(crate) RequestId);

pub(crate) fn router(edge: Arc<Edge>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::retrieve))
        .route("/v1/metrics/serving", get(serving::serving))
        .route("/openapi.json", get(openapi::document))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(unknown_url)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(edge.clone(), name_and_count))
        .with_state(edge)
}

async fn name_and_count(State(edge): State<Arc<Edge>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::new(edge.clock.now());
    request.extensions_mut().insert(RequestName(id));
    let mut response = next.run(request).await;
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(X_REQUEST_ID, id);
    }
    edge.metrics.response(response.status().as_u16());
    response
}

async fn unknown_url(request: Request) -> GatewayError {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    GatewayError::UnknownUrl { method, path }
}

async fn method_not_allowed(request: Request) -> GatewayError {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    GatewayError::MethodNotAllowed { method, path }
}

/// A handler's panic is a bug; the panic hook has logged where. What the request held was released by its guards.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    GatewayError::Internal("a handler panicked").into_response()
}
