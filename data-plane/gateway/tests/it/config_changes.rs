//! What a published change does to requests.

use serde_json::json;
use weir_schemas::config_snapshot::ResourceType;
use weir_schemas::records::FinishReason;

use crate::support::worker::Script;
use crate::support::{Harness, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_and_its_running_request_finishes_and_is_charged() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let mut running = harness.client.chat_stream(&harness.token, json!({})).await;
    running.event().await.unwrap();
    harness.control_plane.change(|config| config.resources.keys.clear());
    eventually("applied", || harness.control_plane.applied(ResourceType::Keys) == 2).await;
    // The acknowledgement says that the snapshot is held; a moment later it is in force.
    let mut status = 0;
    for _ in 0..200 {
        harness.workers[0].script(Script::answer(&["b"]));
        status = harness.client.chat(&harness.token, json!({})).await.status.as_u16();
        if status == 401 {
            break;
        }
    }
    assert_eq!(status, 401);
    assert!(
        harness.ledger.charges().iter().all(|charge| charge.data.finish_reason != FinishReason::Cancelled)
    );
    drop(running);
    eventually("the running one is charged", || {
        harness.ledger.charges().iter().any(|charge| charge.data.finish_reason == FinishReason::Cancelled)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_type_is_refused_with_a_reason_and_the_rest_applies() {
    let harness = Harness::new(1).await;
    harness.control_plane.change(|config| {
        config.resources.verification_keys[0].x = "no key".into();
        config.resources.keys.clear();
    });
    eventually("refused", || !harness.control_plane.refusals().is_empty()).await;
    let refusals = harness.control_plane.refusals();
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].0, "verification_keys");
    assert!(refusals[0].1.contains("not an Ed25519 public key"));
    eventually("applied", || harness.control_plane.applied(ResourceType::Keys) == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_text_of_another_digest_is_never_used() {
    let harness = Harness::new(1).await;
    harness.control_plane.change(|config| {
        config.resources.versions[0].tokenizer_digest = format!("sha256:{}", "0".repeat(64));
    });
    let probe = harness.running.as_ref().unwrap().ready_probe();
    eventually("not ready any more", || probe().is_err()).await;
    let answer = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(answer.error().2.as_deref(), Some("model_warming"));
    assert!(harness.workers[0].requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_leaves_the_config_takes_nothing_new_and_ends_what_it_has() {
    let harness = Harness::new(2).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let mut running = harness.client.chat_stream(&harness.token, json!({})).await;
    running.event().await.unwrap();
    assert_eq!(harness.workers[0].requests().len(), 1);
    harness.workers[0].script(Script::answer(&["b"]));
    let leaves = harness.workers[0].id;
    harness
        .control_plane
        .change(|config| config.resources.replicas.retain(|replica| replica.worker != leaves));
    // Equally loaded otherwise, the first replica would get half of these.
    eventually("applied", || harness.control_plane.applied(ResourceType::Replicas) == 2).await;
    for _ in 0..20 {
        assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    }
    assert!(harness.workers[1].requests().len() >= 19);
    drop(running);
    eventually("the running one is cancelled where it runs, and charged", || {
        let cancelled = |charge: &&weir_schemas::records::ChargeRecord| {
            charge.data.finish_reason == FinishReason::Cancelled && charge.data.generated_tokens == 1
        };
        harness.workers[0].cancelled() == 1 && harness.ledger.charges().iter().filter(cancelled).count() == 1
    })
    .await;
}
