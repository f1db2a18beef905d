//! The one place where a failure becomes OpenAI's error object: `{"error":{message,type,param,code}}` with its status
//! and headers (DESIGN.md section 6). Texts are for the caller: what was wrong and what to do, never a key or prompt.

mod refusal;

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use weir_schemas::error_class::ErrorClass;

use crate::authenticate::AuthError;
use crate::error::GatewayError;
use crate::http::{load_headers, rate_limit_headers};
use crate::idempotency::IdempotencyError;

/// A model's name is echoed up to this length.
const MAX_ECHO_CHARS: usize = 128;
/// A full record log has room again once the ledger, or the disk, has caught up.
const LOG_FULL_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Another gateway or replica may take it at once.
const ELSEWHERE_RETRY_AFTER: Duration = Duration::from_secs(1);

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

/// What an answer says beside its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Also {
    Nothing,
    /// How to authenticate.
    Bearer,
    /// The limits that the request met.
    RateLimits,
    /// What it would have had to wait for.
    Load,
    /// OpenAI's clients need not try a 409 again.
    NoRetry,
    /// The rest of the body was not read; the connection cannot carry another request.
    CloseConnection,
}

/// How an error looks, but for its text: one row of the table.
#[derive(Debug)]
struct Row {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    retry_after: Option<Duration>,
    also: Also,
}

impl Row {
    /// The table of DESIGN.md section 6. The status is the class's unless HTTP has one of its own for the case.
    fn of(error: &GatewayError) -> Self {
        const INVALID: &str = "invalid_request_error";
        const UNAVAILABLE: &str = "service_unavailable";
        const RATE_LIMIT: &str = "rate_limit_error";
        const SERVER: &str = "server_error";
        let row = |kind: &'static str, code: &'static str| Self::new(status(error.class()), kind, Some(code));
        match error {
            GatewayError::Auth(AuthError::Scope) => {
                row(INVALID, "insufficient_permissions").also(Also::Bearer)
            }
            GatewayError::Auth(AuthError::Missing | AuthError::Malformed | AuthError::Refused(_)) => {
                row(INVALID, "invalid_api_key").also(Also::Bearer)
            }
            GatewayError::Parameter(parameter) => Self {
                param: parameter.param.clone(),
                ..Self::new(StatusCode::BAD_REQUEST, INVALID, parameter.code)
            },
            GatewayError::BodyTooLarge { .. } => Self {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                ..row(INVALID, "request_too_large").also(Also::CloseConnection)
            },
            GatewayError::BodyTimeout => row(INVALID, "request_timeout").also(Also::CloseConnection),
            GatewayError::BodyUnreadable => {
                Self::new(StatusCode::BAD_REQUEST, INVALID, None).also(Also::CloseConnection)
            }
            GatewayError::UnknownUrl { .. } => Self::new(StatusCode::NOT_FOUND, INVALID, None),
            GatewayError::MethodNotAllowed { .. } => {
                Self { status: StatusCode::METHOD_NOT_ALLOWED, ..row(INVALID, "method_not_supported") }
            }
            GatewayError::UnknownModel { .. } => row(INVALID, "model_not_found").param("model"),
            GatewayError::Template { param, .. } => row(INVALID, "invalid_value").param(param),
            GatewayError::ContextLength { param, .. } => row(INVALID, "context_length_exceeded").param(param),
            GatewayError::Admission(refusal) => {
                let limited = row(RATE_LIMIT, "rate_limit_exceeded").also(Also::RateLimits);
                Self { retry_after: refusal.retry_after(), ..limited }
            }
            GatewayError::BudgetSpent => row("insufficient_quota", "insufficient_quota"),
            GatewayError::Capacity { retry_after, .. } => {
                row(RATE_LIMIT, "capacity_exhausted").after(*retry_after).also(Also::Load)
            }
            GatewayError::ModelWarming { retry_after, .. } => {
                row(UNAVAILABLE, "model_warming").after(*retry_after)
            }
            GatewayError::Idempotency(IdempotencyError::Reused) => {
                row(INVALID, "idempotency_key_reused").param("Idempotency-Key").also(Also::NoRetry)
            }
            GatewayError::Idempotency(IdempotencyError::Spent) => {
                row(INVALID, "idempotency_key_spent").param("Idempotency-Key").also(Also::NoRetry)
            }
            GatewayError::Idempotency(IdempotencyError::TooLongToJoin) => {
                row(INVALID, "idempotency_key_in_use").param("Idempotency-Key")
            }
            GatewayError::Idempotency(IdempotencyError::TooManyRunning) => {
                row(RATE_LIMIT, "capacity_exhausted").after(ELSEWHERE_RETRY_AFTER)
            }
            GatewayError::RecordLogFull => row(UNAVAILABLE, "record_log_full").after(LOG_FULL_RETRY_AFTER),
            GatewayError::Stopping => row(UNAVAILABLE, "gateway_stopping").after(ELSEWHERE_RETRY_AFTER),
            GatewayError::ReplicaLost => row(UNAVAILABLE, "replica_lost").after(ELSEWHERE_RETRY_AFTER),
            GatewayError::EngineFailed => row(SERVER, "engine_failed"),
            GatewayError::Deadline { .. } => row(SERVER, "deadline_exceeded"),
            GatewayError::Internal(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, None),
        }
    }

    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>) -> Self {
        Self { status, kind, code, param: None, retry_after: None, also: Also::Nothing }
    }

    fn param(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    fn also(self, also: Also) -> Self {
        Self { also, ..self }
    }
}

const fn status(class: ErrorClass) -> StatusCode {
    match class {
        ErrorClass::Invalid => StatusCode::BAD_REQUEST,
        ErrorClass::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorClass::Forbidden => StatusCode::FORBIDDEN,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::Conflict => StatusCode::CONFLICT,
        ErrorClass::RateLimited | ErrorClass::Capacity => StatusCode::TOO_MANY_REQUESTS,
        ErrorClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::Deadline | ErrorClass::Cancelled => StatusCode::REQUEST_TIMEOUT,
        ErrorClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl ErrorBody {
    pub(crate) fn new(error: &GatewayError) -> Self {
        Self::of_row(error, Row::of(error))
    }

    fn of_row(error: &GatewayError, row: Row) -> Self {
        let Row { kind, code, param, .. } = row;
        Self { error: ErrorObject { message: message(error), kind, param, code } }
    }
}

impl IntoResponse for GatewayError {
    fn into_response(self) -> Response {
        let row = Row::of(&self);
        let (status, retry_after, also) = (row.status, row.retry_after, row.also);
        let body = serde_json::to_vec(&ErrorBody::of_row(&self, row)).expect("strings always serialise");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        match also {
            Also::Nothing => {}
            Also::Bearer => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Also::RateLimits => {
                if let Self::Admission(refusal) = &self {
                    rate_limit_headers::insert(headers, &refusal.limits);
                }
            }
            Also::Load => {
                if let Self::Capacity { load: Some((expected, slo)), .. } = self {
                    load_headers::insert(headers, expected, slo);
                }
            }
            Also::NoRetry => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            Also::CloseConnection => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
        response
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
        GatewayError::Admission(refusal) => refusal::message(refusal),
        GatewayError::BudgetSpent => {
            "You exceeded your current quota. The tenant's budget is spent; its owner or the operator can raise it."
                .into()
        }
        GatewayError::Capacity { .. } => {
            "All replicas of this model are full. Retry after the stated time.".into()
        }
        GatewayError::Idempotency(error) => idempotency_message(*error).into(),
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

fn idempotency_message(error: IdempotencyError) -> &'static str {
    match error {
        IdempotencyError::Reused => {
            "This Idempotency-Key was used with another request body or endpoint in the last 24 hours. Repeat a \
             request byte for byte, or use a new key."
        }
        IdempotencyError::Spent => {
            "This Idempotency-Key's request was run several times and cut off or failed each time. Use a new key."
        }
        IdempotencyError::TooLongToJoin => {
            "This Idempotency-Key's request is running, and its answer has become too long to be joined. Retry later."
        }
        IdempotencyError::TooManyRunning => {
            "Too many requests with an Idempotency-Key are running. Retry after the stated time."
        }
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
