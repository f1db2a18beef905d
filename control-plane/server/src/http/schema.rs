//! Small types of the API that several nouns share, as the contract shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};
use weir_schemas::config_snapshot::{Limits, Slo};

use super::problem::ProblemBody;

/// Upper bounds; an absent one does not bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Limits)]
pub(crate) struct LimitsBody {
    /// Prompt and generated tokens a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) tokens_per_minute: Option<u64>,
    /// Prompt tokens a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) input_tokens_per_minute: Option<u64>,
    /// Generated tokens a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) output_tokens_per_minute: Option<u64>,
    /// Requests a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) requests_per_minute: Option<u64>,
    /// Sequences in flight at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) concurrent_sequences: Option<u64>,
    /// Generated tokens of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) max_output_tokens: Option<u64>,
    /// Prompt plus generated tokens of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub(crate) max_context_tokens: Option<u64>,
}

/// Limits on single models, by the name that clients call them by.
pub(crate) type ModelLimitsBody = BTreeMap<String, LimitsBody>;

/// The one as the other: a body as limits, limits as a body.
pub(crate) fn by_model<A: Into<B>, B>(limits: BTreeMap<String, A>) -> BTreeMap<String, B> {
    limits.into_iter().map(|(model, limits)| (model, limits.into())).collect()
}

impl From<LimitsBody> for Limits {
    fn from(body: LimitsBody) -> Self {
        let LimitsBody {
            tokens_per_minute,
            input_tokens_per_minute,
            output_tokens_per_minute,
            requests_per_minute,
            concurrent_sequences,
            max_output_tokens,
            max_context_tokens,
        } = body;
        Self {
            tokens_per_minute,
            input_tokens_per_minute,
            output_tokens_per_minute,
            requests_per_minute,
            concurrent_sequences,
            max_output_tokens,
            max_context_tokens,
        }
    }
}

impl From<Limits> for LimitsBody {
    fn from(limits: Limits) -> Self {
        let Limits {
            tokens_per_minute,
            input_tokens_per_minute,
            output_tokens_per_minute,
            requests_per_minute,
            concurrent_sequences,
            max_output_tokens,
            max_context_tokens,
        } = limits;
        Self {
            tokens_per_minute,
            input_tokens_per_minute,
            output_tokens_per_minute,
            requests_per_minute,
            concurrent_sequences,
            max_output_tokens,
            max_context_tokens,
        }
    }
}

/// Latency targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Slo)]
pub(crate) struct SloBody {
    /// Time to first token, milliseconds.
    #[schema(minimum = 1, example = 200)]
    pub(crate) ttft_ms: u64,
    /// Gap between tokens, milliseconds.
    #[schema(minimum = 1, example = 100)]
    pub(crate) itl_ms: u64,
}

impl From<SloBody> for Slo {
    fn from(body: SloBody) -> Self {
        Self { ttft_ms: body.ttft_ms, itl_ms: body.itl_ms }
    }
}

impl From<Slo> for SloBody {
    fn from(slo: Slo) -> Self {
        Self { ttft_ms: slo.ttft_ms, itl_ms: slo.itl_ms }
    }
}

/// The scopes by name, for the contract.
#[derive(ToSchema)]
#[schema(as = Scope)]
#[expect(dead_code, reason = "stands in the contract for weir-schemas' Scope, which has the same names")]
pub(crate) enum ScopeName {
    #[schema(rename = "inference")]
    Inference,
    #[schema(rename = "usage:read")]
    UsageRead,
    #[schema(rename = "keys:write")]
    KeysWrite,
    #[schema(rename = "tenant:admin")]
    TenantAdmin,
}

/// A tenant's states by name, for the contract.
#[derive(ToSchema)]
#[schema(as = TenantState, rename_all = "snake_case")]
#[expect(
    dead_code,
    reason = "stands in the contract for weir-schemas' TenantState, which has the same names"
)]
pub(crate) enum TenantStateName {
    Active,
    Suspended,
}

/// What any read may answer instead.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses in the contract; made by Problem")]
pub(crate) enum ReadProblems {
    /// The request is malformed.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemBody),
    /// No or no good token.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(ProblemBody),
    /// The token's scopes do not reach this far.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemBody),
    /// Not there, or not the caller's to see.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemBody),
    /// The database is away; `Retry-After` says when to come back.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemBody),
}

/// What any write may answer besides.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses in the contract; made by Problem")]
pub(crate) enum WriteProblems {
    /// The resource exists, is in another state, or the Idempotency-Key was used for something else.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(ProblemBody),
    /// The resource is not at the version that If-Match states.
    #[response(status = 412, content_type = "application/problem+json")]
    Precondition(ProblemBody),
}
