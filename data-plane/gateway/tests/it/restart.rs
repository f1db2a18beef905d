//! Stopping and starting again.

use serde_json::json;
use weir_schemas::records::FinishReason;

use crate::support::worker::Script;
use crate::support::{Harness, eventually, prompt_tokens};

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_running_requests_end_and_a_start_serves_from_disk() {
    let mut harness = Harness::new(1).await;
    let reading = harness.client.chat_stream(&harness.token, json!({})).await;
    harness.cancel.cancel();
    let events = reading.events().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    harness.stop().await;
    assert_eq!(harness.ledger.charges().len(), 1);

    // The control plane is away now, and the model text is on disk.
    harness.control_plane = crate::support::control_plane::ControlPlane::start(
        weir_schemas::config_snapshot::ConfigSnapshot::default(),
        crate::support::secret(),
    )
    .await;
    harness.start().await;
    harness.wait_ready().await;
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    harness.ledger.wait_charges(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_drain_is_cut_and_recorded() {
    let mut harness = Harness::with(1, |raw| raw.drain_timeout_ms = 50, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a", "b"]));
    let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
    reading.event().await.unwrap();
    harness.stop().await;
    let charge = harness.ledger.charges().remove(0).data;
    assert_eq!((charge.finish_reason, charge.generated_tokens), (FinishReason::Cancelled, 2));
    assert_eq!(charge.prompt_tokens, prompt_tokens("hello"));
    eventually("the worker was told", || harness.workers[0].cancelled() == 1).await;
}
