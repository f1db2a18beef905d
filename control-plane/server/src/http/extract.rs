//! Strict reading of requests: bounded bodies, unknown fields refused, every failure a 4xx problem.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderMap, IF_MATCH};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use weir_schemas::config_snapshot::digest;

use super::App;
use super::problem::Problem;

/// No body of this API comes near; the largest is an alias with its targets.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;
/// A body of this size arrives at once; one that trickles in must not hold a request slot.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A serde message may quote the body; this much of it says enough.
const PARSE_MESSAGE_CHARS_MAX: usize = 200;
const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;

/// A JSON body and its digest.
#[derive(Debug)]
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) digest: String,
}

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &App) -> Result<Self, Problem> {
        let is_json =
            request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
                value
                    .split(';')
                    .next()
                    .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
            });
        if !is_json {
            return Err(Problem::invalid("the body must be application/json")
                .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"));
        }
        let reading = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX);
        let read = tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(|_| {
            Problem::invalid("the body did not arrive in time")
                .with_status(StatusCode::REQUEST_TIMEOUT, "body_timeout")
        })?;
        let bytes = read.map_err(|_| {
            Problem::invalid(format!("the body could not be read, or is larger than {BODY_BYTES_MAX} bytes"))
                .with_status(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large")
        })?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            Problem::invalid(error.to_string().chars().take(PARSE_MESSAGE_CHARS_MAX).collect::<String>())
        })?;
        Ok(Self { value, digest: digest(&bytes) })
    }
}

/// Typed path parameters. One that cannot be parsed names nothing that exists.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: FromStr + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let absent = || Problem::absent("resource");
        let params =
            axum::extract::RawPathParams::from_request_parts(parts, app).await.map_err(|_| absent())?;
        // The resource itself is the last parameter; a tenant before it is the caller's proof to check.
        let last = params.iter().last().and_then(|(_, value)| value.parse().ok());
        last.map(Self).ok_or_else(absent)
    }
}

/// Typed query parameters; an unknown or malformed one is refused.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| Problem::invalid(error.body_text()))
    }
}

/// What a write says beside its body.
#[derive(Debug)]
pub(crate) struct WriteHeaders {
    /// The version that the caller has seen.
    pub(crate) if_match: Option<u64>,
    /// Names the write, so that a repeat is recognised.
    pub(crate) idempotency_key: Option<String>,
    /// Method and path.
    pub(crate) target: String,
}

impl FromRequestParts<App> for WriteHeaders {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Ok(Self {
            if_match: if_match(&parts.headers)?,
            idempotency_key: idempotency_key(&parts.headers)?,
            target: format!("{} {}", parts.method, parts.uri),
        })
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text == "*" {
        return Ok(None);
    }
    let version = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).and_then(|v| v.parse().ok());
    version.map(Some).ok_or_else(|| Problem::invalid("If-Match must be an ETag that this API gave"))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let good = (1..=IDEMPOTENCY_KEY_CHARS_MAX).contains(&text.len());
    let rule = || {
        Problem::invalid(format!(
            "Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable characters"
        ))
    };
    if good { Ok(Some(text.to_owned())) } else { Err(rule()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_strictly() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        assert_eq!(if_match(&HeaderMap::new()).unwrap(), None);
        assert_eq!(if_match(&with("if-match", "\"7\"")).unwrap(), Some(7));
        assert_eq!(if_match(&with("if-match", "*")).unwrap(), None);
        for bad in ["7", "\"x\"", "\"-1\"", "W/\"7\""] {
            assert!(if_match(&with("if-match", bad)).is_err(), "{bad}");
        }
        assert_eq!(idempotency_key(&with("idempotency-key", "a")).unwrap(), Some("a".into()));
        for bad in ["", &"x".repeat(256)] {
            assert!(idempotency_key(&with("idempotency-key", bad)).is_err());
        }
    }
}
