//! What a version runs on: the operator's choice, as it shows.

use weir_schemas::rpc::worker::{FinishReason, VersionState};
use weir_worker::Device;

use crate::support::{TestWorker, generate};

#[tokio::test(flavor = "multi_thread")]
async fn a_simulated_device_answers_by_seed_alone_and_is_marked() {
    let worker = TestWorker::on(Device::Sim).await;
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
async fn auto_is_the_cpu_and_a_backend_that_is_not_built_in_is_said_to_be_missing() {
    let worker = TestWorker::on(Device::Auto).await;
    assert_eq!(worker.wait_for_state(VersionState::Ready).await.device, "cpu");
    worker.stop().await;
    let worker = TestWorker::on(Device::Cuda).await;
    let failed = worker.wait_for_state(VersionState::Failed).await;
    assert!(failed.state_reason.contains("no CUDA backend"), "{}", failed.state_reason);
    worker.stop().await;
}
