//! `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` as OpenAI writes them.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::admission::{LimitState, LimitStates};

/// Inserts what there is a limit for.
pub(crate) fn insert(headers: &mut HeaderMap, limits: &LimitStates) {
    const REQUESTS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ];
    const TOKENS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ];
    insert_state(headers, REQUESTS, limits.requests);
    insert_state(headers, TOKENS, limits.tokens);
}

fn insert_state(headers: &mut HeaderMap, names: [HeaderName; 3], state: Option<LimitState>) {
    let Some(state) = state else { return };
    let [limit, remaining, reset] = names;
    headers.insert(limit, HeaderValue::from(state.limit));
    headers.insert(remaining, HeaderValue::from(state.remaining));
    if let Ok(value) = HeaderValue::from_str(&go_duration(state.reset)) {
        headers.insert(reset, value);
    }
}

/// `20ms`, `1.5s`, `6m0s`, `1h0m3s`.
pub(super) fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (total_s, rest_ms) = (millis / 1000, millis % 1000);
    let (hours, minutes, seconds) = (total_s / 3600, total_s / 60 % 60, total_s % 60);
    let fraction = match rest_ms {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{fraction}s"),
        (0, minutes) => format!("{minutes}m{seconds}{fraction}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_openai_does() {
        let check = |millis, expected: &str| assert_eq!(go_duration(Duration::from_millis(millis)), expected);
        check(0, "0ms");
        check(20, "20ms");
        check(1_000, "1s");
        check(1_500, "1.5s");
        check(12_345, "12.345s");
        check(360_000, "6m0s");
        check(3_603_000, "1h0m3s");
    }

    #[test]
    fn headers_are_absent_without_a_limit() {
        let mut headers = HeaderMap::new();
        let tokens = LimitState { limit: 100, remaining: 40, reset: Duration::from_secs(36) };
        insert(&mut headers, &LimitStates { requests: None, tokens: Some(tokens) });
        assert_eq!(headers.len(), 3);
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "40");
        assert_eq!(headers["x-ratelimit-reset-tokens"], "36s");
    }
}
