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

/// Says so if the request was cut or is served by another model, which stands in the answer.
pub(crate) fn insert_relief(headers: &mut HeaderMap, relief: Relief) {
    let Relief { granted_max_tokens, is_overflow } = relief;
    if is_overflow || granted_max_tokens.is_some() {
        headers.insert(OVERLOAD, HeaderValue::from_static(if is_overflow { "overflow" } else { "shrink" }));
    }
    if let Some(max_tokens) = granted_max_tokens {
        headers.insert(GRANTED_MAX_TOKENS, HeaderValue::from(max_tokens));
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
