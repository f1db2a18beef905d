//! `GET /metrics`

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::http::App;

/// Metrics in OpenMetrics text form.
#[utoipa::path(get, path = "/metrics", tag = "system", responses((status = 200, body = String)), security(()))]
pub(crate) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], (app.metrics_text)())
}
