//! What a version runs on: the operator's choice, as it shows, and what happens when it fails.

use std::error::Error;

use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::{FinishReason, VersionState};
use weir_stand_in::{Failure, StandIn};
use weir_worker::{Device, RawConfig, WorkerFailed};

use crate::support::{TestWorker, generate, records, request};

/// Two sequences, on a device that is as small as the test.
fn on_gpu(raw: &mut RawConfig) {
    raw.device = Device::Cuda;
    raw.max_seats = 2;
    raw.step_tokens = 128;
    raw.cuda.memory_percent = 30;
    raw.cuda.step_timeout_ms = 60_000;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_device_answers_by_seed_alone_and_is_marked() {
    let worker = TestWorker::with(|raw| raw.device = Device::Sim).await.unwrap();
    assert_eq!(worker.wait_for_state(VersionState::Ready).await.device, "sim");
    let mut session = worker.session().await;
    let mut seeded = async |request, prompt: Vec<u32>, seed| {
        let mut generate = generate(request, prompt, 8);
        generate.sampling.as_mut().unwrap().seed = seed;
        session.complete(generate).await
    };
    let (first, finished) = seeded(1, vec![1, 2, 3], 7).await;
    assert_eq!((finished.reason(), finished.generated_tokens), (FinishReason::Length, 8));
    let (again, _) = seeded(2, vec![4, 5, 6], 7).await;
    assert_eq!((&again.tokens, &again.text), (&first.tokens, &first.text));
    let (other, _) = seeded(3, vec![1, 2, 3], 8).await;
    assert_ne!(other.tokens, first.tokens);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_answers_and_is_marked() {
    let _stand_in = StandIn::load();
    let worker = TestWorker::with(on_gpu).await.unwrap();
    let load = worker.wait_for_state(VersionState::Ready).await;
    assert_eq!((load.device.as_str(), load.state_reason.as_str()), ("cuda", ""));
    let mut session = worker.session().await;
    let (answer, finished) = session.complete(generate(1, vec![600, 601, 602], 2)).await;
    assert_eq!((finished.reason(), answer.tokens.len()), (FinishReason::Length, 2));
    worker.wait_until_idle().await;
    drop(session);
    worker.stop().await;
}

/// Waiting requests included: every record is closed, nobody is told an end, and the streams are cut.
async fn loses_its_device(worker: TestWorker, fail: impl FnOnce()) {
    assert_eq!(worker.wait_for_state(VersionState::Ready).await.state_reason, "");
    let mut session = worker.session().await;
    fail();
    for number in 1..=3 {
        session.send(generate(number, vec![600, 601, 602], 40)).await;
    }
    let status = session.broken().await;
    assert!(worker.is_ready().unwrap_err().contains("device"), "{status}");
    let (folder, failed) = worker.failed().await;
    assert!(matches!(failed, WorkerFailed::DeviceLost), "{failed}");
    let records = records(folder.path());
    for number in 1..=3 {
        // A request that came after the end was refused before it had a record.
        if let Some(record) = records.get(&request(number)) {
            assert_eq!(record.data.outcome, ExecutionOutcome::Error);
        }
    }
    assert!(records.contains_key(&request(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_ends_the_worker() {
    let stand_in = StandIn::load();
    let worker = TestWorker::with(on_gpu).await.unwrap();
    loses_its_device(worker, || stand_in.fail_execution(50, Failure::IllegalAddress)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_hangs_ends_the_worker() {
    let stand_in = StandIn::load();
    let short = |raw: &mut RawConfig| {
        on_gpu(raw);
        raw.cuda.step_timeout_ms = 300;
    };
    let worker = TestWorker::with(short).await.unwrap();
    loses_its_device(worker, || stand_in.hang(true)).await;
}

/// What `auto` takes, and what `cuda` says to it.
async fn chosen(device: &str, says: &str) {
    let auto = |raw: &mut RawConfig| {
        on_gpu(raw);
        raw.device = Device::Auto;
    };
    let worker = TestWorker::with(auto).await.unwrap();
    assert_eq!(worker.wait_for_state(VersionState::Ready).await.device, device);
    worker.stop().await;
    if let Err(refused) = TestWorker::with(on_gpu).await {
        let cause = refused.source().unwrap().to_string();
        assert!(!says.is_empty() && cause.contains(says), "{cause}");
        assert!(refused.to_string().contains("worker.device is cuda"), "{refused}");
    } else {
        assert_eq!(says, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_is_the_gpu_where_one_can_be_used_and_the_cpu_elsewhere() {
    let stand_in = StandIn::load();
    chosen("cuda", "").await;
    stand_in.set_driver_version(12_090);
    chosen("cpu", "is for CUDA 12.9, and 13.0 or later is needed").await;
    stand_in.set_driver_version(13_000);
    stand_in.set_capability(7, 5);
    chosen("cpu", "compute capability 7.5").await;
    stand_in.set_capability(9, 0);
    stand_in.refuse_context(2);
    chosen("cpu", "cuDevicePrimaryCtxRetain says CUDA_ERROR_OUT_OF_MEMORY").await;
    stand_in.refuse_context(0);
    stand_in.set_devices(0);
    chosen("cpu", "finds 0 devices").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_the_gpu_cannot_hold_is_refused_with_what_would_fit() {
    let stand_in = StandIn::load();
    stand_in.set_memory(100 << 20);
    let worker = TestWorker::with(on_gpu).await.unwrap();
    let failed = worker.wait_for_state(VersionState::Failed).await;
    assert!(failed.state_reason.contains("would fit"), "{}", failed.state_reason);
    worker.stop().await;
}
