//! The worker's own count, and its recovery.

use weir_metering::{LogOptions, RecordLog};
use weir_schemas::ids::{KeyId, WorkerId};
use weir_schemas::records::{ExecutionOutcome, Tier};

use crate::support::{TestWorker, gateway, generate, pinned, records, request, tenant, version};

#[tokio::test(flavor = "multi_thread")]
async fn a_record_says_what_the_gateway_was_told() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let (answer, told) = session.complete(generate(1, (0..50).map(|n| 500 + n).collect(), 12)).await;
    let folder = worker.stop().await;
    let data = records(folder.path()).remove(&request(1)).unwrap().data;
    assert_eq!(data.generated_tokens, answer.tokens.len() as u64);
    assert_eq!(data.cached_tokens, told.cached_prompt_tokens);
    assert_eq!(data.computed_tokens, told.computed_prompt_tokens);
    assert_eq!(
        (data.queue_us, data.prefill_us, data.decode_us),
        (told.queue_us, told.prefill_us, told.decode_us)
    );
    assert_eq!((data.prompt_tokens, data.attempt, data.seats, data.recovered), (50, 1, 1, false));
    assert_eq!((data.tenant, data.version), (tenant(1), version()));
    assert!(data.device_us > 0, "it alone used the device");
    let billing = data.billing.unwrap();
    assert_eq!((billing.gateway, billing.key), (gateway(), KeyId::from_u128(7)));
    assert_eq!((billing.requested_model.as_str(), billing.tier), ("the-model", Tier::Interactive));
    assert_eq!(
        (billing.project.as_deref(), billing.received_at.timestamp()),
        (Some("search"), 1_790_000_000)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_sequences_run_closes_their_records() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let handle = session.send(generate(1, vec![600; 20], 900)).await;
    session.read_until(handle, |answer| !answer.tokens.is_empty()).await;
    let folder = worker.stop().await;
    let data = records(folder.path()).remove(&request(1)).unwrap().data;
    assert_eq!(data.outcome, ExecutionOutcome::Cancelled);
    assert!(data.generated_tokens > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_open_is_closed_with_its_last_progress() {
    let folder = tempfile::tempdir().unwrap();
    let worker = WorkerId::from_u128(5);
    std::fs::write(folder.path().join("node_id"), worker.to_string()).unwrap();
    {
        // What a worker that died had written.
        let options = LogOptions::new(worker.to_string());
        let (log, _) = RecordLog::open(&folder.path().join("record_log"), options).unwrap();
        let open = serde_json::json!({
            "request": request(9), "attempt": 2, "tenant": tenant(1), "version": version(),
            "instance": "ins_00000000000000000000000001", "prompt_tokens": 33, "started_at": "2026-01-01T00:00:00Z",
        });
        let mut entry = log.begin(&open).unwrap();
        let progress = serde_json::json!({
            "at": "2026-01-01T00:00:05Z", "cached_tokens": 16, "computed_tokens": 17, "generated_tokens": 4,
            "preemptions": 0, "queue_us": 1, "prefill_us": 2, "decode_us": 3, "device_us": 4,
        });
        entry.progress(&progress).unwrap();
        drop(log);
        // The entry dies open, as in a crash.
    }
    let running = TestWorker::start_in(folder, pinned()).await;
    let folder = running.stop().await;
    let data = records(folder.path()).remove(&request(9)).unwrap().data;
    assert!(data.recovered);
    assert_eq!((data.outcome, data.attempt), (ExecutionOutcome::Error, 2));
    assert_eq!(
        (data.prompt_tokens, data.cached_tokens, data.computed_tokens, data.generated_tokens),
        (33, 16, 17, 4)
    );
    assert_eq!(data.finished_at.to_rfc3339(), "2026-01-01T00:00:05+00:00");
}
