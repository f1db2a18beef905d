//! `GET /openapi.json`: the document of this API, as it is kept in `schemas/`.

use axum::http::header;
use axum::response::{IntoResponse, Response};

const DOCUMENT: &str = include_str!("../../../../schemas/openapi/gateway.json");

pub(super) async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}
