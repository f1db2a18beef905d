//! The one place where a failure becomes a response: `application/problem+json` (RFC 9457).

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use weir_schemas::config_snapshot::Scope;
use weir_schemas::error_class::ErrorClass;

use crate::auth::SignerError;
use crate::store::StoreError;

/// What a client is told to wait when a dependency is away: long enough not to hammer, short enough to notice.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("2");

/// A failure as the caller sees it. Its text is safe to show.
#[derive(Debug)]
pub(crate) struct Problem {
    class: ErrorClass,
    status: StatusCode,
    code: &'static str,
    detail: String,
}

/// The body of every failure, RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// What kind of problem, as a URN.
    #[serde(rename = "type")]
    #[schema(example = "urn:weir:problem:not_found")]
    problem_type: String,
    /// The kind in words.
    #[schema(example = "Not Found")]
    title: String,
    /// The HTTP status.
    #[schema(example = 404)]
    status: u16,
    /// A stable name of the kind, for programs.
    #[schema(example = "not_found")]
    code: String,
    /// What happened and what to do.
    #[schema(example = "no such tenant")]
    detail: String,
}

impl Problem {
    /// A problem of this class, with a text that is safe to show.
    pub(crate) fn of(class: ErrorClass, detail: impl Into<String>) -> Self {
        let (status, code) = status_and_code(class);
        Self { class, status, code, detail: detail.into() }
    }

    /// A malformed request.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::of(ErrorClass::Invalid, detail)
    }

    /// Not there, or not the caller's to see.
    pub(crate) fn absent(noun: &str) -> Self {
        Self::of(ErrorClass::NotFound, format!("no such {noun}"))
    }

    /// A malformed request for which HTTP has a status of its own.
    pub(crate) fn with_status(self, status: StatusCode, code: &'static str) -> Self {
        Self { status, code, ..self }
    }

    /// No token, or one that is not good. Which of the two, and why, is not told.
    pub(crate) fn unauthenticated() -> Self {
        Self::of(ErrorClass::Unauthenticated, "send a valid token as 'Authorization: Bearer …'")
    }

    /// The token is good but does not reach this far.
    pub(crate) fn scope(needed: Scope) -> Self {
        Self::of(ErrorClass::Forbidden, format!("this needs the scope '{}'", needed.as_str()))
    }
}

const fn status_and_code(class: ErrorClass) -> (StatusCode, &'static str) {
    match class {
        ErrorClass::Invalid => (StatusCode::BAD_REQUEST, "invalid_request"),
        ErrorClass::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
        ErrorClass::Forbidden => (StatusCode::FORBIDDEN, "insufficient_scope"),
        ErrorClass::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        ErrorClass::Conflict => (StatusCode::CONFLICT, "conflict"),
        ErrorClass::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        ErrorClass::Capacity => (StatusCode::SERVICE_UNAVAILABLE, "capacity"),
        ErrorClass::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        ErrorClass::Deadline => (StatusCode::GATEWAY_TIMEOUT, "deadline"),
        // Nobody reads it: the caller went away.
        ErrorClass::Cancelled => (StatusCode::REQUEST_TIMEOUT, "cancelled"),
        ErrorClass::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            problem_type: format!("urn:weir:problem:{}", self.code),
            title: self.status.canonical_reason().unwrap_or("Error").to_owned(),
            status: self.status.as_u16(),
            code: self.code.to_owned(),
            detail: self.detail,
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.class {
            ErrorClass::Unauthenticated => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorClass::Unavailable | ErrorClass::Capacity | ErrorClass::RateLimited => {
                headers.insert(RETRY_AFTER, RETRY_AFTER_S);
            }
            ErrorClass::Invalid
            | ErrorClass::Forbidden
            | ErrorClass::NotFound
            | ErrorClass::Conflict
            | ErrorClass::Deadline
            | ErrorClass::Cancelled
            | ErrorClass::Internal => {}
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let class = error.class();
        match class {
            ErrorClass::Internal => tracing::error!(error = %chain(&error), "a request failed"),
            ErrorClass::Unavailable => tracing::warn!(error = %chain(&error), "a request met an outage"),
            ErrorClass::Invalid
            | ErrorClass::Unauthenticated
            | ErrorClass::Forbidden
            | ErrorClass::NotFound
            | ErrorClass::Conflict
            | ErrorClass::RateLimited
            | ErrorClass::Capacity
            | ErrorClass::Deadline
            | ErrorClass::Cancelled => {}
        }
        let problem = Self::of(class, error.to_string());
        if matches!(error, StoreError::Version { .. }) {
            return problem.with_status(StatusCode::PRECONDITION_FAILED, "version_conflict");
        }
        problem
    }
}

impl From<SignerError> for Problem {
    fn from(error: SignerError) -> Self {
        if let SignerError::Store(error) = error {
            return error.into();
        }
        tracing::error!(error = %chain(&error), "no token could be made");
        Self::of(ErrorClass::Internal, "the token could not be made; see the control plane's log")
    }
}

/// The error and its causes, for the log.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_say_when_to_come_back_and_conflicts_of_version_are_preconditions() {
        let outage = Problem::from(StoreError::Unavailable(sqlx::Error::PoolTimedOut)).into_response();
        assert_eq!(outage.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(outage.headers().contains_key(RETRY_AFTER));
        assert_eq!(outage.headers()[CONTENT_TYPE], "application/problem+json");
        let stale = Problem::from(StoreError::Version { expected: 1, actual: 2 }).into_response();
        assert_eq!(stale.status(), StatusCode::PRECONDITION_FAILED);
    }
}
