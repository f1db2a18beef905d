//! What a client is told of the limit that it met, in OpenAI's words as far as OpenAI has the limit.

use super::echo;
use crate::admission::{LimitKind, LimitScope, Refusal, RefusalReason};
use crate::http::rate_limit_headers::go_duration;

pub(super) fn message(refusal: &Refusal) -> String {
    let RefusalReason::Limit { scope, kind, excess } = refusal.reason else {
        return "Rate limit reached: this gateway holds no share of your limits at the moment. Retry later."
            .into();
    };
    let (whose, what) = (whose(scope, &echo(&refusal.model)), what(kind));
    let (limit, requested) = (excess.limit, excess.requested);
    match excess.wait {
        Some(wait) => format!(
            "Rate limit reached for {whose} on {what}: Limit {limit}, Used {}, Requested {requested}. Please try \
             again in {}.",
            limit.saturating_sub(excess.available),
            go_duration(wait)
        ),
        None => format!(
            "Request too large for {whose} on {what}: Limit {limit}, Requested {requested}. The prompt, max_tokens \
             or n must be reduced in order to run successfully."
        ),
    }
}

fn whose(scope: LimitScope, model: &str) -> String {
    match scope {
        LimitScope::Tenant => "this tenant".into(),
        LimitScope::TenantOnModel => format!("`{model}` in this tenant"),
        LimitScope::Key => "this key".into(),
        LimitScope::KeyOnModel => format!("`{model}` with this key"),
    }
}

fn what(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Tokens => "tokens per min (TPM)",
        LimitKind::InputTokens => "input tokens per min",
        LimitKind::OutputTokens => "output tokens per min",
        LimitKind::Requests => "requests per min (RPM)",
        LimitKind::Concurrency => "concurrent sequences",
    }
}
