//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::answer;
use super::router::Edge;
use crate::error::GatewayError;
use crate::openai::answer::Endpoint;
use crate::openai::completion;

pub(super) async fn create(
    State(edge): State<Arc<Edge>>,
    request: Request,
) -> Result<Response, GatewayError> {
    answer::create(&edge, Endpoint::Completion, completion::parse, request).await
}
