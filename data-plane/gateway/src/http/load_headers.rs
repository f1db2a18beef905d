//! `x-weir-*`: what a request met at its replica, so that callers can shed load themselves, and what it got instead of
//! what it asked for.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use weir_schemas::config_snapshot::Slo;

use crate::overload::Relief;
use crate::routing::Expected;

const QUEUE_DEPTH: HeaderName = HeaderName::from_static("x-weir-queue-depth");
const EXPECTED_TTFT_MS: HeaderName = HeaderName::from_static("x-weir-expected-ttft-ms");
const SLO_BREACH: HeaderName = HeaderName::from_static("x-weir-slo-breach");

const OVERLOAD: HeaderName = HeaderName::from_static("x-weir-overload");
const GRANTED_MAX_TOKENS: HeaderName = HeaderName::from_static("x-weir-granted-max-tokens");

/// Says so if the request was shrunk or served by another model.
pub(crate) fn insert_relief(headers: &mut HeaderMap, relief: Option<Relief>) {
    match relief {
        None => {}
        Some(Relief::Shrunk { max_tokens }) => {
            headers.insert(OVERLOAD, HeaderValue::from_static("shrink"));
            headers.insert(GRANTED_MAX_TOKENS, HeaderValue::from(max_tokens));
        }
        // The model that answered stands in the answer.
        Some(Relief::Overflowed) => {
            headers.insert(OVERLOAD, HeaderValue::from_static("overflow"));
        }
    }
}

pub(crate) fn insert(headers: &mut HeaderMap, expected: Expected, slo: Slo) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, never negative")]
    let ttft_ms = expected.ttft_ms().round().max(0.0) as u64;
    headers.insert(QUEUE_DEPTH, HeaderValue::from(expected.queue_depth));
    headers.insert(EXPECTED_TTFT_MS, HeaderValue::from(ttft_ms));
    let is_breach = ttft_ms > slo.ttft_ms;
    headers.insert(SLO_BREACH, HeaderValue::from_static(if is_breach { "true" } else { "false" }));
}
