//! The charge that a request's executions give, by the rules that its gateway would have charged by (DESIGN.md
//! section 4, "Chargeable").

use chrono::{DateTime, Utc};
use weir_schemas::config_snapshot::Revision;
use weir_schemas::ids::KeyId;
use weir_schemas::records::{
    ChargeData, ChargeRecord, ExecutionOutcome, ExecutionRecord, FinishReason, GapStats, SloOutcome, Tier,
};

/// From the attempts at one request, in order; refused ones are none. `None` if there are none.
///
/// Every sampled token is charged, and the prompt once: all of it once there was a token, before that as far as the
/// last attempt computed it or took it from cache. Cache hits are those of the attempt that the prompt was paid for:
/// the first that made a token.
pub(super) fn charge_record(attempts: &[ExecutionRecord], now: DateTime<Utc>) -> Option<ChargeRecord> {
    let (first, last) = (&attempts.first()?.data, &attempts.last()?.data);
    let generated_tokens = attempts.iter().map(|attempt| attempt.data.generated_tokens).sum();
    let paid = attempts.iter().map(|attempt| &attempt.data).find(|data| data.generated_tokens > 0);
    let prompt_tokens = match paid {
        Some(_) => first.prompt_tokens,
        None => last.prompt_tokens.min(last.cached_tokens + last.computed_tokens),
    };
    let billing = attempts.iter().rev().find_map(|attempt| attempt.data.billing.as_ref());
    let data = ChargeData {
        tenant: last.tenant,
        key: billing.map_or(KeyId::from_u128(0), |billing| billing.key),
        project: billing.and_then(|billing| billing.project.clone()),
        client_request_id: billing.and_then(|billing| billing.client_request_id.clone()),
        idempotency_key_hash: billing.and_then(|billing| billing.idempotency_key_hash.clone()),
        requested_model: billing.map(|billing| billing.requested_model.clone()).unwrap_or_default(),
        version: last.version,
        tier: billing.map_or(Tier::Interactive, |billing| billing.tier),
        stream: false,
        n: 1,
        granted_max_tokens: None,
        prompt_tokens,
        cached_prompt_tokens: paid.unwrap_or(last).cached_tokens.min(prompt_tokens),
        generated_tokens,
        reasoning_tokens: 0,
        finish_reason: match last.outcome {
            ExecutionOutcome::Stop => FinishReason::Stop,
            ExecutionOutcome::Length => FinishReason::Length,
            ExecutionOutcome::Cancelled => FinishReason::Cancelled,
            ExecutionOutcome::Error | ExecutionOutcome::Refused => FinishReason::Error,
        },
        received_at: billing.map_or(first.started_at, |billing| billing.received_at),
        finished_at: attempts.iter().map(|attempt| attempt.data.finished_at).max()?,
        queue_us: last.queue_us,
        prefill_us: last.prefill_us,
        ttft_us: None,
        decode_us: last.decode_us,
        inter_token: GapStats::default(),
        slo: SloOutcome { ttft_target_ms: 0, itl_target_ms: 0, ttft_met: None, itl_met: None },
        replicas: attempts.iter().map(|attempt| attempt.data.worker).collect(),
        preemptions: attempts.iter().map(|attempt| attempt.data.preemptions).sum(),
        config_revision: Revision::default(),
        sequence: last.sequence,
        recovered: attempts.iter().any(|attempt| attempt.data.recovered),
    };
    Some(ChargeRecord::new(last.request.to_string(), last.worker.to_string(), now, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXECUTION: &str = include_str!("../../../../schemas/samples/weir.execution.finished.v1.json");
    const BILLED: &str = include_str!("../../../../schemas/samples/weir.execution.finished.v1.billed.json");

    fn attempt(sample: &str, change: impl FnOnce(&mut ExecutionRecord)) -> ExecutionRecord {
        let mut record = serde_json::from_str(sample).unwrap();
        change(&mut record);
        record
    }

    fn tokens(attempts: &[ExecutionRecord]) -> (u64, u64, u64) {
        let data = charge_record(attempts, DateTime::UNIX_EPOCH).unwrap().data;
        (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens)
    }

    /// Prompt, cached, computed, generated.
    fn counts(prompt: u64, cached: u64, computed: u64, generated: u64) -> ExecutionRecord {
        attempt(EXECUTION, |record| {
            let data = &mut record.data;
            (data.prompt_tokens, data.cached_tokens) = (prompt, cached);
            (data.computed_tokens, data.generated_tokens) = (computed, generated);
        })
    }

    #[test]
    fn the_prompt_once_and_every_token() {
        assert_eq!(tokens(&[counts(40, 32, 8, 4)]), (40, 32, 4));
        assert_eq!(tokens(&[counts(40, 16, 8, 0)]), (24, 16, 0), "cancelled in its prompt");
        assert_eq!(tokens(&[counts(40, 0, 12, 0), counts(40, 32, 8, 4)]), (40, 32, 4));
        assert_eq!(tokens(&[counts(40, 32, 8, 3), counts(43, 0, 43, 2)]), (40, 32, 5), "went on elsewhere");
        assert_eq!(tokens(&[counts(40, 0, 40, 0), counts(40, 16, 8, 0)]), (24, 16, 0));
        assert!(charge_record(&[], DateTime::UNIX_EPOCH).is_none());
    }

    #[test]
    fn labels_are_those_that_the_gateway_told() {
        let data = charge_record(&[attempt(BILLED, |_| ())], DateTime::UNIX_EPOCH).unwrap().data;
        let billing = attempt(BILLED, |_| ()).data.billing.unwrap();
        assert_eq!(
            (data.key, data.project, data.received_at),
            (billing.key, billing.project, billing.received_at)
        );
        assert_eq!(data.requested_model, billing.requested_model);
        let unknown = charge_record(&[attempt(EXECUTION, |_| ())], DateTime::UNIX_EPOCH).unwrap().data;
        assert_eq!((unknown.key, unknown.requested_model.as_str()), (KeyId::from_u128(0), ""));
    }

    #[test]
    fn an_error_before_the_first_token_is_charged_at_nothing() {
        let failed = attempt(EXECUTION, |record| {
            (record.data.generated_tokens, record.data.outcome) = (0, ExecutionOutcome::Error);
        });
        let data = charge_record(&[failed], DateTime::UNIX_EPOCH).unwrap().data;
        assert!(!data.finish_reason.is_chargeable(data.generated_tokens));
    }
}
