//! What the worker does not do, and how it says so.

use tonic::Code;
use tonic::transport::Channel;
use weir_schemas::ids::VersionId;
use weir_schemas::rpc::worker::worker_client::WorkerClient;
use weir_schemas::rpc::worker::{FinishReason, Generate, ModelTextRequest, VersionState, WatchRequest};

use crate::support::{CONTEXT_LIMIT, TestWorker, generate, pinned, records, request};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_without_the_secret() {
    let worker = TestWorker::start(pinned()).await;
    let channel = Channel::from_shared(worker.address.clone()).unwrap().connect().await.unwrap();
    let mut client = WorkerClient::new(channel);
    let watch = client.watch(WatchRequest::default()).await.unwrap_err();
    let text = client.get_model_text(ModelTextRequest::default()).await.unwrap_err();
    let session = client.session(tokio_stream::empty()).await.unwrap_err();
    for status in [watch, text, session] {
        assert_eq!(status.code(), Code::Unauthenticated);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_request_is_refused_by_name_and_recorded_as_refused() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let mut number = 0;
    let mut refused = Vec::new();
    let mut check = async |wanted: FinishReason, change: fn(&mut Generate)| {
        number += 1;
        let mut bad = generate(number, vec![1, 2, 3], 5);
        change(&mut bad);
        if bad.request_id == request(number).to_string()
            && bad.attempt > 0
            && bad.tenant_id.starts_with("ten_")
        {
            refused.push(request(number));
        }
        let (answer, finished) = session.complete(bad).await;
        assert_eq!(finished.reason(), wanted, "{}", finished.message);
        assert!(!finished.message.is_empty() && answer.text.is_empty());
    };
    check(FinishReason::RefusedInvalid, |bad| bad.prompt.clear()).await;
    check(FinishReason::RefusedInvalid, |bad| bad.max_tokens = 0).await;
    check(FinishReason::RefusedInvalid, |bad| bad.prompt = vec![u32::MAX]).await;
    check(FinishReason::RefusedInvalid, |bad| bad.prompt = vec![5; CONTEXT_LIMIT as usize]).await;
    check(FinishReason::RefusedInvalid, |bad| bad.max_tokens = u32::MAX).await;
    check(FinishReason::RefusedInvalid, |bad| bad.sampling = None).await;
    check(FinishReason::RefusedInvalid, |bad| bad.sampling.as_mut().unwrap().temperature = f32::NAN).await;
    check(FinishReason::RefusedInvalid, |bad| bad.sampling.as_mut().unwrap().top_p = -1.0).await;
    check(FinishReason::RefusedInvalid, |bad| bad.class = 0).await;
    check(FinishReason::RefusedInvalid, |bad| bad.stop = vec!["x".into(); 100_000]).await;
    check(FinishReason::RefusedInvalid, |bad| bad.request_id = "nonsense".into()).await;
    check(FinishReason::RefusedInvalid, |bad| bad.tenant_id = "key_0".into()).await;
    check(FinishReason::RefusedInvalid, |bad| bad.attempt = 0).await;
    check(FinishReason::RefusedNotLoaded, |bad| bad.version_id = VersionId::from_u128(99).to_string()).await;
    // The worker is none the worse for it.
    let (_, finished) = session.complete(generate(1000, vec![1, 2, 3], 2)).await;
    assert_eq!(finished.reason(), FinishReason::Length);
    worker.wait_until_idle().await;
    let folder = worker.stop().await;
    let records = records(folder.path());
    assert_eq!(records.len(), refused.len() + 1);
    for request in refused {
        let data = &records[&request].data;
        assert_eq!(data.outcome, weir_schemas::records::ExecutionOutcome::Refused);
        assert_eq!((data.computed_tokens, data.generated_tokens), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_file_than_the_pinned_one_is_not_loaded() {
    let check = async |change: fn(&mut weir_schemas::config_snapshot::PinnedVersion), words: &str| {
        let mut version = pinned();
        change(&mut version);
        let worker = TestWorker::start(version).await;
        let load = worker.wait_for_state(VersionState::Failed).await;
        assert!(load.state_reason.contains(words), "{}", load.state_reason);
        assert!(worker.is_ready().is_err());
        worker.stop().await;
    };
    check(|version| version.digest = format!("sha256:{}", "0".repeat(64)), "digest").await;
    check(|version| version.tokenizer_digest = format!("sha256:{}", "0".repeat(64)), "tokenizer digest")
        .await;
    check(|version| version.weights_uri = "file:///nowhere.gguf".into(), "cannot read").await;
    check(|version| version.weights_uri = "https://example.org/a".into(), "file:///path").await;
    check(|version| version.context_limit = 1 << 20, "context_limit").await;
}
