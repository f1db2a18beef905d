//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::answer;
use super::router::Edge;
use crate::error::GatewayError;
use crate::openai::answer::Endpoint;
use crate::openai::chat;

pub(super) async fn create(
    State(edge): State<Arc<Edge>>,
    request: Request,
) -> Result<Response, GatewayError> {
    answer::create(&edge, Endpoint::Chat, chat::parse, request).await
}
