//! Part of stage 4: how many tokens a request may have in all, and so how many it may generate. Pure.

use weir_schemas::config_snapshot::{Limits, PinnedVersion};

use crate::authenticate::Principal;
use crate::error::GatewayError;
use crate::indexed_config::IndexedConfig;
use crate::openai::ParameterError;

/// The bounds that apply to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// Prompt and output together.
    context_tokens: u64,
    /// Output alone, by the tenant's or the key's limits.
    output_tokens: Option<u64>,
}

impl Ceiling {
    /// The tightest of the version's, the replicas', the tenant's and the key's bounds, over all models and on this one.
    pub(crate) fn new(
        config: &IndexedConfig,
        principal: Principal,
        model: &str,
        version: &PinnedVersion,
        replica_tokens: u64,
    ) -> Self {
        let limits = limits(config, principal, model);
        let context = limits.max_context_tokens.unwrap_or(u64::MAX);
        Self {
            context_tokens: context.min(u64::from(version.context_limit)).min(replica_tokens),
            output_tokens: limits.max_output_tokens,
        }
    }

    pub(crate) fn context_tokens(&self) -> u64 {
        self.context_tokens
    }
}

/// The request's `max_tokens`: as asked for, or whatever remains.
pub(crate) fn decide(
    ceiling: &Ceiling,
    prompt_tokens: u64,
    asked: Option<u32>,
    param: &'static str,
) -> Result<u32, GatewayError> {
    let too_long = |output_tokens| GatewayError::ContextLength {
        limit_tokens: ceiling.context_tokens,
        prompt_tokens,
        output_tokens,
        param,
    };
    let room = ceiling.context_tokens.saturating_sub(prompt_tokens);
    let granted = match asked {
        Some(asked) => {
            let asked = u64::from(asked);
            if let Some(limit) = ceiling.output_tokens.filter(|limit| asked > *limit) {
                let message = format!(
                    "max_tokens is too large: {asked}. Your limits allow at most {limit} completion tokens."
                );
                return Err(ParameterError::invalid("max_tokens", message).into());
            }
            if asked > room {
                return Err(too_long(asked));
            }
            asked
        }
        None => room.min(ceiling.output_tokens.unwrap_or(u64::MAX)),
    };
    match u32::try_from(granted) {
        Ok(0) => Err(too_long(1)),
        Ok(granted) => Ok(granted),
        Err(_) => Ok(u32::MAX),
    }
}

/// The lowest of all that apply.
fn limits(config: &IndexedConfig, principal: Principal, model: &str) -> Limits {
    let (tenant, lease) = (config.tenant(principal.tenant), config.lease(principal.tenant));
    let key = config.key(principal.key);
    let stated = [
        tenant.map(|tenant| tenant.limits),
        tenant.and_then(|tenant| tenant.model_limits.get(model).copied()),
        lease.map(|lease| lease.share),
        lease.and_then(|lease| lease.model_shares.get(model).copied()),
        key.map(|key| key.limits),
        key.and_then(|key| key.model_limits.get(model).copied()),
    ];
    stated.into_iter().flatten().fold(Limits::default(), Limits::lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling() -> Ceiling {
        Ceiling { context_tokens: 100, output_tokens: None }
    }

    #[test]
    fn what_is_asked_for_must_fit_to_the_token() {
        let asked = |prompt, asked| decide(&ceiling(), prompt, Some(asked), "messages");
        assert_eq!(asked(60, 40).unwrap(), 40);
        for (prompt, max) in [(60, 41), (100, 1), (101, 1), (1, u32::MAX)] {
            let error = asked(prompt, max).unwrap_err();
            assert!(
                matches!(error, GatewayError::ContextLength { limit_tokens: 100, prompt_tokens, output_tokens, .. }
                    if prompt_tokens == prompt && output_tokens == u64::from(max)),
                "{error:?}"
            );
        }
    }

    #[test]
    fn what_is_left_open_is_whatever_remains() {
        let open = |ceiling: Ceiling, prompt| decide(&ceiling, prompt, None, "messages");
        assert_eq!(open(ceiling(), 60).unwrap(), 40);
        assert_eq!(open(Ceiling { output_tokens: Some(10), ..ceiling() }, 60).unwrap(), 10);
        assert!(matches!(open(ceiling(), 100), Err(GatewayError::ContextLength { output_tokens: 1, .. })));
    }

    #[test]
    fn an_output_above_the_tenants_limit_is_refused_by_name() {
        let ceiling = Ceiling { output_tokens: Some(10), ..ceiling() };
        assert_eq!(decide(&ceiling, 1, Some(10), "messages").unwrap(), 10);
        let error = decide(&ceiling, 1, Some(11), "messages").unwrap_err();
        assert!(
            matches!(error, GatewayError::Parameter(parameter) if parameter.param.as_deref() == Some("max_tokens"))
        );
    }
}
