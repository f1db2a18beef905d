//! A recorder on a log of its own, for unit tests.

use prometheus_client::registry::Registry;
use weir_metering::LogOptions;
use weir_schemas::config_snapshot::Revision;
use weir_schemas::records::{GapStats, SloOutcome, Tier};

use super::*;
use crate::testing::{key, now, tenant, version};

pub(crate) fn charge() -> ChargeData {
    ChargeData {
        tenant: tenant(),
        key: key(),
        project: None,
        client_request_id: None,
        idempotency_key_hash: None,
        requested_model: "m".into(),
        version: version(),
        tier: Tier::Interactive,
        stream: true,
        n: 1,
        granted_max_tokens: None,
        prompt_tokens: 0,
        cached_prompt_tokens: 0,
        generated_tokens: 0,
        reasoning_tokens: 0,
        finish_reason: FinishReason::Cancelled,
        received_at: now(),
        finished_at: now(),
        queue_us: 0,
        prefill_us: 0,
        ttft_us: None,
        decode_us: 0,
        inter_token: GapStats::default(),
        slo: SloOutcome { ttft_target_ms: 200, itl_target_ms: 100, ttft_met: None, itl_met: None },
        replicas: vec![],
        preemptions: 0,
        config_revision: Revision::default(),
        sequence: 0,
        recovered: false,
    }
}

/// A recorder on a log in `directory`, and what a previous run left open there.
pub(crate) fn recorder(directory: &tempfile::TempDir) -> (Arc<Recorder>, Vec<Unclosed>) {
    let gateway = GatewayId::from_u128(9);
    let (log, unclosed) = RecordLog::open(directory.path(), LogOptions::new(gateway.to_string())).unwrap();
    let metrics = Metrics::register(&mut Registry::default());
    (Arc::new(Recorder::new(gateway, Clock::new(now), log, metrics)), unclosed)
}

pub(crate) fn written(recorder: &Recorder) -> Vec<ChargeRecord> {
    recorder.log.sync().unwrap();
    let records = recorder.log.cursor().read(100, 1 << 20).unwrap();
    records.iter().map(|record| serde_json::from_slice(&record.payload).unwrap()).collect()
}

pub(crate) fn open(recorder: &Arc<Recorder>, number: u128, charge: ChargeData) -> OpenRecord {
    let received = Received::new(recorder.clone(), RequestId::from_u128(number), charge);
    received.open(100, Instant::now()).unwrap()
}
