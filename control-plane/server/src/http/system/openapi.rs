//! `GET /openapi.yaml`

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::http::openapi_yaml;

/// This contract.
#[utoipa::path(get, path = "/openapi.yaml", tag = "system", responses((status = 200, body = String, content_type = "application/yaml")), security(()))]
pub(crate) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/yaml")], openapi_yaml())
}
