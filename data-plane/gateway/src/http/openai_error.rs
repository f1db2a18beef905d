//! The one place where a failure becomes OpenAI's error object: `{"error":{message,type,param,code}}` with its status
//! and headers (DESIGN.md section 6). Texts are for the caller: what was wrong and what to do, never a key or prompt.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use weir_schemas::error_class::ErrorClass;

use crate::admission::RefusalReason;
use crate::authenticate::AuthError;
use crate::error::GatewayError;
use crate::http::rate_limit_headers;

/// A model's name is echoed up to this length.
const MAX_ECHO_CHARS: usize = 128;

/// OpenAI's error object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorObject,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ErrorObject {
    pub(crate) message: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
}

impl ErrorBody {
    pub(crate) fn new(error: &GatewayError) -> Self {
        let (kind, code) = kind_and_code(error);
        let error = ErrorObject { message: message(error), kind, param: param(error), code };
        Self { error }
    }
}

impl IntoResponse for GatewayError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&ErrorBody::new(&self)).expect("strings always serialise");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status(&self);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = retry_after(&self) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        match &self {
            Self::Auth(_) => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Admission(refusal) => rate_limit_headers::insert(headers, &refusal.limits),
            // The rest of the body was not read; the connection cannot carry another request.
            Self::BodyTooLarge { .. } | Self::BodyTimeout | Self::BodyUnreadable => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Parameter(_)
            | Self::UnknownUrl { .. }
            | Self::MethodNotAllowed { .. }
            | Self::UnknownModel { .. }
            | Self::ModelWarming { .. }
            | Self::Template { .. }
            | Self::ContextLength { .. }
            | Self::BudgetSpent
            | Self::Capacity { .. }
            | Self::RecordLogFull
            | Self::Stopping
            | Self::ReplicaLost
            | Self::EngineFailed
            | Self::Deadline { .. }
            | Self::Internal(_) => {}
        }
        response
    }
}

/// The status of an error.
pub(crate) fn status(error: &GatewayError) -> StatusCode {
    match (error, error.class()) {
        (GatewayError::BodyTooLarge { .. }, _) => StatusCode::PAYLOAD_TOO_LARGE,
        (GatewayError::MethodNotAllowed { .. }, _) => StatusCode::METHOD_NOT_ALLOWED,
        (_, ErrorClass::Invalid) => StatusCode::BAD_REQUEST,
        (_, ErrorClass::Unauthenticated) => StatusCode::UNAUTHORIZED,
        (_, ErrorClass::Forbidden) => StatusCode::FORBIDDEN,
        (_, ErrorClass::NotFound) => StatusCode::NOT_FOUND,
        (_, ErrorClass::Conflict) => StatusCode::CONFLICT,
        (_, ErrorClass::RateLimited | ErrorClass::Capacity) => StatusCode::TOO_MANY_REQUESTS,
        (_, ErrorClass::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        (_, ErrorClass::Deadline | ErrorClass::Cancelled) => StatusCode::REQUEST_TIMEOUT,
        (_, ErrorClass::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn kind_and_code(error: &GatewayError) -> (&'static str, Option<&'static str>) {
    const INVALID: &str = "invalid_request_error";
    match error {
        GatewayError::Auth(AuthError::Scope) => (INVALID, Some("insufficient_permissions")),
        GatewayError::Auth(AuthError::Missing | AuthError::Malformed | AuthError::Refused(_)) => {
            (INVALID, Some("invalid_api_key"))
        }
        GatewayError::Parameter(parameter) => (INVALID, parameter.code),
        GatewayError::BodyTooLarge { .. } => (INVALID, Some("request_too_large")),
        GatewayError::BodyTimeout => (INVALID, Some("request_timeout")),
        GatewayError::BodyUnreadable | GatewayError::UnknownUrl { .. } => (INVALID, None),
        GatewayError::MethodNotAllowed { .. } => (INVALID, Some("method_not_supported")),
        GatewayError::UnknownModel { .. } => (INVALID, Some("model_not_found")),
        GatewayError::ModelWarming { .. } => ("service_unavailable", Some("model_warming")),
        GatewayError::Template { .. } => (INVALID, Some("invalid_value")),
        GatewayError::ContextLength { .. } => (INVALID, Some("context_length_exceeded")),
        GatewayError::Admission(_) => ("rate_limit_error", Some("rate_limit_exceeded")),
        GatewayError::BudgetSpent => ("insufficient_quota", Some("insufficient_quota")),
        GatewayError::Capacity { .. } => ("rate_limit_error", Some("capacity_exhausted")),
        GatewayError::RecordLogFull => ("service_unavailable", Some("record_log_full")),
        GatewayError::Stopping => ("service_unavailable", Some("gateway_stopping")),
        GatewayError::ReplicaLost => ("service_unavailable", Some("replica_lost")),
        GatewayError::EngineFailed => ("server_error", Some("engine_failed")),
        GatewayError::Deadline { .. } => ("server_error", Some("deadline_exceeded")),
        GatewayError::Internal(_) => ("server_error", None),
    }
}

fn param(error: &GatewayError) -> Option<String> {
    match error {
        GatewayError::Parameter(parameter) => parameter.param.clone(),
        GatewayError::UnknownModel { .. } => Some("model".into()),
        GatewayError::Template { param, .. } | GatewayError::ContextLength { param, .. } => {
            Some((*param).into())
        }
        GatewayError::Auth(_)
        | GatewayError::BodyTooLarge { .. }
        | GatewayError::BodyTimeout
        | GatewayError::BodyUnreadable
        | GatewayError::UnknownUrl { .. }
        | GatewayError::MethodNotAllowed { .. }
        | GatewayError::ModelWarming { .. }
        | GatewayError::Admission(_)
        | GatewayError::BudgetSpent
        | GatewayError::Capacity { .. }
        | GatewayError::RecordLogFull
        | GatewayError::Stopping
        | GatewayError::ReplicaLost
        | GatewayError::EngineFailed
        | GatewayError::Deadline { .. }
        | GatewayError::Internal(_) => None,
    }
}

fn message(error: &GatewayError) -> String {
    match error {
        GatewayError::Auth(AuthError::Missing | AuthError::Malformed) => {
            "You didn't provide an API key. Provide it in an Authorization header using Bearer auth \
             (i.e. Authorization: Bearer YOUR_KEY)."
                .into()
        }
        GatewayError::Auth(AuthError::Refused(_)) => {
            "Incorrect API key provided. It is unknown, expired or revoked; ask your tenant's owner for another."
                .into()
        }
        GatewayError::Auth(AuthError::Scope) => {
            "You have insufficient permissions for this operation. Missing scopes: inference.".into()
        }
        GatewayError::Parameter(parameter) => parameter.message.clone(),
        GatewayError::BodyTooLarge { limit_bytes } => {
            format!("The request body is larger than the limit of {limit_bytes} bytes.")
        }
        GatewayError::BodyTimeout => "The request body did not arrive in time.".into(),
        GatewayError::BodyUnreadable => "The request body could not be read to its end.".into(),
        GatewayError::UnknownUrl { method, path } => format!("Invalid URL ({method} {})", echo(path)),
        GatewayError::MethodNotAllowed { method, path } => {
            format!("Not allowed to {method} on {}.", echo(path))
        }
        GatewayError::UnknownModel { model } => {
            format!("The model `{}` does not exist or you do not have access to it.", echo(model))
        }
        GatewayError::ModelWarming { model, .. } => {
            format!("The model `{}` has no replica ready yet. Retry after the stated time.", echo(model))
        }
        GatewayError::Template { reason, param } => format!("Invalid '{param}' for this model: {reason}"),
        // Refused before it was counted.
        GatewayError::ContextLength { limit_tokens, output_tokens: 0, param, .. } => format!(
            "This model's maximum context length is {limit_tokens} tokens. However, the {param} alone needs more. \
             Please reduce the length of the {param}."
        ),
        GatewayError::ContextLength { limit_tokens, prompt_tokens, output_tokens, param } => format!(
            "This model's maximum context length is {limit_tokens} tokens. However, you requested {} tokens \
             ({prompt_tokens} in the {param}, {output_tokens} in the completion). Please reduce the length of the \
             {param} or completion.",
            prompt_tokens.saturating_add(*output_tokens)
        ),
        GatewayError::Admission(refusal) => admission_message(refusal.reason),
        GatewayError::BudgetSpent => {
            "You exceeded your current quota. The tenant's budget is spent; its owner or the operator can raise it."
                .into()
        }
        GatewayError::Capacity { .. } => {
            "All replicas of this model are full. Retry after the stated time.".into()
        }
        GatewayError::RecordLogFull => {
            "The server cannot account for new requests at the moment. Retry later.".into()
        }
        GatewayError::Stopping => "This server is stopping. Retry on another.".into(),
        GatewayError::ReplicaLost => {
            "The replica that served this request was lost. Retry the request.".into()
        }
        GatewayError::EngineFailed => "The server had an error while processing your request.".into(),
        GatewayError::Deadline { limit } => {
            format!("The request ran longer than the limit of {} seconds.", limit.as_secs())
        }
        GatewayError::Internal(_) => "The server had an error while processing your request.".into(),
    }
}

fn admission_message(reason: RefusalReason) -> String {
    match reason {
        RefusalReason::NoLease => {
            "Rate limit reached: this gateway holds no share of your limits at the moment. Retry later."
                .into()
        }
        RefusalReason::Tokens { limit, requested, available } => format!(
            "Rate limit reached on tokens per min (TPM): Limit {limit}, Available {available}, Requested {requested}."
        ),
        RefusalReason::TooLarge { limit, requested } => format!(
            "Request too large on tokens per min (TPM): Limit {limit}, Requested {requested}. Reduce the prompt or \
             max_tokens."
        ),
        RefusalReason::Requests { limit } => {
            format!("Rate limit reached on requests per min (RPM): Limit {limit}, Available 0, Requested 1.")
        }
        RefusalReason::Concurrency { limit } => {
            format!("Rate limit reached on concurrent requests: Limit {limit}, Requested 1.")
        }
    }
}

fn retry_after(error: &GatewayError) -> Option<Duration> {
    match error {
        GatewayError::Admission(refusal) => refusal.retry_after,
        GatewayError::ModelWarming { retry_after, .. } | GatewayError::Capacity { retry_after } => {
            Some(*retry_after)
        }
        GatewayError::RecordLogFull => Some(Duration::from_secs(5)),
        GatewayError::Stopping | GatewayError::ReplicaLost => Some(Duration::from_secs(1)),
        GatewayError::Auth(_)
        | GatewayError::Parameter(_)
        | GatewayError::BodyTooLarge { .. }
        | GatewayError::BodyTimeout
        | GatewayError::BodyUnreadable
        | GatewayError::UnknownUrl { .. }
        | GatewayError::MethodNotAllowed { .. }
        | GatewayError::UnknownModel { .. }
        | GatewayError::Template { .. }
        | GatewayError::ContextLength { .. }
        | GatewayError::BudgetSpent
        | GatewayError::EngineFailed
        | GatewayError::Deadline { .. }
        | GatewayError::Internal(_) => None,
    }
}

/// Rounded up: a client that waits this long must not come too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn echo(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_ECHO_CHARS).collect()
}

#[cfg(test)]
mod tests;
