//! Where a request is to run: at the best replica of its model, cut, at a smaller model, or not at all, by the overload
//! policy of its deployment and class.

use weir_schemas::config_snapshot::{OverloadPolicy, PinnedVersion, Slo};
use weir_schemas::ids::RequestId;
use weir_schemas::records::Tier;
use weir_schemas::rpc::worker::Class;

use super::{Arrived, Pipeline, Stop, no_replica};
use crate::error::GatewayError;
use crate::indexed_config::IndexedConfig;
use crate::metrics::OverloadAction;
use crate::openai::CompletionRequest;
use crate::overload::{self, Age, Full, Relief, Terms};
use crate::resolve::resolve;
use crate::routing::{Chosen, Expected, NoReplica, Wanted};

/// What may serve a request.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// As clients name it.
    pub(super) model: String,
    pub(super) version: PinnedVersion,
    pub(super) slo: Slo,
}

impl Target {
    pub(super) fn of(config: &IndexedConfig, model: &str, request: RequestId) -> Result<Self, GatewayError> {
        let version = resolve(config, model, request)?.clone();
        let slo = config.deployment(version.id).map_or_else(Slo::default, |deployment| deployment.slo);
        Ok(Self { model: model.to_owned(), version, slo })
    }
}

/// Where a request runs, and on what terms.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) chosen: Chosen,
    pub(super) terms: Terms,
}

impl Pipeline {
    /// `may_overflow`: another model has not been asked yet.
    pub(super) fn place(
        &self,
        arrived: &Arrived,
        target: &Target,
        wanted: Wanted,
        may_overflow: bool,
    ) -> Result<Placed, Stop> {
        let Arrived { config, request, principal, instant, .. } = arrived;
        let chosen = self.registry.choose(config, target.version.id, wanted, &[]);
        let chosen = chosen.map_err(|none| match none {
            NoReplica::TooLong { max_sequence_tokens } => GatewayError::ContextLength {
                limit_tokens: max_sequence_tokens,
                prompt_tokens: wanted.prompt_tokens,
                output_tokens: wanted.max_tokens,
                param: request.input.param(),
            },
            NoReplica::Warming { .. } => no_replica(none, request),
        })?;
        let (slo, expected) = (target.slo, chosen.expected);
        let waits = OverloadPolicy::default();
        let deployment = config.deployment(target.version.id);
        let policy = deployment.map_or(&waits, |deployment| match wanted.class {
            Class::Batch => &deployment.overload.batch,
            Class::Interactive | Class::Unspecified => &deployment.overload.interactive,
        });
        let is_agreed = config.tenant(principal.tenant).is_some_and(|tenant| tenant.may_overflow);
        if may_overflow
            && is_agreed
            && let Some(model) = overload::smaller_model(policy, slo, expected)
            && let Some(smaller) = self.with_room(arrived, target, model, wanted)
        {
            return Err(Stop::Overflow(smaller.into()));
        }
        let age = Age { timeout: self.generation.request_timeout, elapsed: instant.elapsed() };
        let terms = overload::terms(policy, slo, expected, age).map_err(|Full { retry_after }| {
            self.generation.metrics.overload(&request.model, wanted.class, OverloadAction::Refused);
            GatewayError::Capacity { retry_after, load: Some((expected, slo)) }
        })?;
        Ok(Placed { chosen, terms })
    }

    /// Counts what was done with a request that is taken and could not be served at once.
    pub(super) fn count_overload(&self, request: &CompletionRequest, relief: Relief, expected: Expected) {
        let action = match relief {
            Relief { is_overflow: true, .. } => OverloadAction::Overflowed,
            Relief { granted_max_tokens: Some(_), .. } => OverloadAction::Shrunk,
            Relief { .. } if expected.is_full => OverloadAction::Queued,
            Relief { .. } => return,
        };
        self.generation.metrics.overload(&request.model, class(request.tier), action);
    }

    /// The model, if it is another one and has room for the request.
    fn with_room(&self, arrived: &Arrived, asked: &Target, model: &str, wanted: Wanted) -> Option<Target> {
        let smaller = Target::of(&arrived.config, model, arrived.request_id).ok()?;
        let chosen = self.registry.choose(&arrived.config, smaller.version.id, wanted, &[]).ok()?;
        let has_room = !overload::is_overloaded(smaller.slo, chosen.expected);
        (has_room && smaller.version.id != asked.version.id).then_some(smaller)
    }
}

pub(super) fn class(tier: Tier) -> Class {
    match tier {
        Tier::Interactive => Class::Interactive,
        Tier::Batch => Class::Batch,
    }
}
