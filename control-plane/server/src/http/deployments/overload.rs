//! Overload policies as the API has them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_domain::deployment::Deployment;
use weir_schemas::config_snapshot::{Overload, OverloadPolicy, QueueBounds};

use crate::http::problem::Problem;
use crate::store::WriteTransaction;

fn max_depth() -> u32 {
    QueueBounds::default().max_depth
}

fn max_wait_ms() -> u64 {
    QueueBounds::default().max_wait_ms
}

/// What a deployment does, by class, with requests that would have to wait for others for more than half of what its target
/// for the first token leaves.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = Overload)]
pub(crate) struct OverloadBody {
    /// With interactive requests.
    interactive: OverloadPolicyBody,
    /// With batch requests.
    batch: OverloadPolicyBody,
}

/// What is done with a request under overload. Whatever waits has bounds; beyond them it is refused with
/// `capacity_exhausted`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = OverloadPolicy)]
pub(crate) enum OverloadPolicyBody {
    /// It waits.
    Queue {
        /// Requests that may wait for a seat at a replica; 0: who finds no seat is refused.
        #[serde(default = "max_depth")]
        #[schema(minimum = 0, default = 1024)]
        max_depth: u32,
        /// From a request's arrival until it begins to be computed, milliseconds.
        #[serde(default = "max_wait_ms")]
        #[schema(minimum = 1, default = 60000)]
        max_wait_ms: u64,
    },
    /// It is refused.
    Shed {},
    /// It waits, and its answer is cut to a length.
    Shrink {
        /// Tokens of each of its choices.
        #[schema(minimum = 1)]
        max_output_tokens: u32,
        /// Requests that may wait for a seat at a replica; 0: who finds no seat is refused.
        #[serde(default = "max_depth")]
        #[schema(minimum = 0, default = 1024)]
        max_depth: u32,
        /// From a request's arrival until it begins to be computed, milliseconds.
        #[serde(default = "max_wait_ms")]
        #[schema(minimum = 1, default = 60000)]
        max_wait_ms: u64,
    },
    /// A smaller model answers, if the tenant agreed to that and the smaller one is not overloaded; else it waits.
    Overflow {
        /// The smaller model, as clients name it.
        model: String,
        /// Requests that may wait for a seat at a replica; 0: who finds no seat is refused.
        #[serde(default = "max_depth")]
        #[schema(minimum = 0, default = 1024)]
        max_depth: u32,
        /// From a request's arrival until it begins to be computed, milliseconds.
        #[serde(default = "max_wait_ms")]
        #[schema(minimum = 1, default = 60000)]
        max_wait_ms: u64,
    },
}

impl Default for OverloadPolicyBody {
    fn default() -> Self {
        OverloadPolicy::default().into()
    }
}

impl From<OverloadBody> for Overload {
    fn from(body: OverloadBody) -> Self {
        Self { interactive: body.interactive.into(), batch: body.batch.into() }
    }
}

impl From<Overload> for OverloadBody {
    fn from(overload: Overload) -> Self {
        Self { interactive: overload.interactive.into(), batch: overload.batch.into() }
    }
}

impl From<OverloadPolicyBody> for OverloadPolicy {
    fn from(body: OverloadPolicyBody) -> Self {
        type Body = OverloadPolicyBody;
        match body {
            Body::Queue { max_depth, max_wait_ms } => {
                Self::Queue { bounds: QueueBounds { max_depth, max_wait_ms } }
            }
            Body::Shed {} => Self::Shed,
            Body::Shrink { max_output_tokens, max_depth, max_wait_ms } => {
                Self::Shrink { max_output_tokens, bounds: QueueBounds { max_depth, max_wait_ms } }
            }
            Body::Overflow { model, max_depth, max_wait_ms } => {
                Self::Overflow { model, bounds: QueueBounds { max_depth, max_wait_ms } }
            }
        }
    }
}

impl From<OverloadPolicy> for OverloadPolicyBody {
    fn from(policy: OverloadPolicy) -> Self {
        match policy {
            OverloadPolicy::Queue { bounds: QueueBounds { max_depth, max_wait_ms } } => {
                Self::Queue { max_depth, max_wait_ms }
            }
            OverloadPolicy::Shed => Self::Shed {},
            OverloadPolicy::Shrink { max_output_tokens, bounds: QueueBounds { max_depth, max_wait_ms } } => {
                Self::Shrink { max_output_tokens, max_depth, max_wait_ms }
            }
            OverloadPolicy::Overflow { model, bounds: QueueBounds { max_depth, max_wait_ms } } => {
                Self::Overflow { model, max_depth, max_wait_ms }
            }
        }
    }
}

/// Refuses to overflow to a name that no alias has, or to one that leads nowhere but to what overflows: neither ever takes
/// a request over. An alias that is deleted or retargeted later is not held back; requests then wait, as in `queue`.
pub(super) async fn check_overflow(
    transaction: &mut WriteTransaction,
    deployment: &Deployment,
) -> Result<(), Problem> {
    let Overload { interactive, batch } = &deployment.overload;
    for (class, policy) in [("interactive", interactive), ("batch", batch)] {
        let OverloadPolicy::Overflow { model, .. } = policy else { continue };
        let targets = transaction.alias_targets(model).await?;
        let own = deployment.version.to_string();
        if targets.is_empty() {
            return Err(Problem::invalid(format!(
                "overload.{class}.model names '{model}', which is no alias; make the alias first, or name another"
            )));
        }
        if targets.iter().all(|target| *target == own) {
            return Err(Problem::invalid(format!(
                "overload.{class}.model names '{model}', an alias of nothing but this deployment's own version; name \
                 one of another model"
            )));
        }
    }
    Ok(())
}
