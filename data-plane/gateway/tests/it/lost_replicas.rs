//! Workers that vanish.

use serde_json::{Value, json};
use weir_schemas::records::FinishReason;

use crate::support::worker::{CACHED_BEFORE_BREAK, Script};
use crate::support::{Harness, prompt_tokens};

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_token_another_replica_takes_over_unseen() {
    let harness = Harness::new(2).await;
    // Equally loaded, so the first one is asked.
    harness.workers[0].script(Script::Break(vec![]));
    harness.workers[1].script(Script::answer(&["ok"]));
    let answer = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "ok");
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!((charge.prompt_tokens, charge.generated_tokens), (prompt_tokens("hello"), 1));
    assert_eq!(charge.finish_reason, FinishReason::Stop);
    assert_eq!(charge.replicas, [harness.workers[0].id, harness.workers[1].id]);
    assert_eq!(harness.workers[1].requests()[0].attempt, 2);
    assert_eq!(harness.metric("weir_gateway_failovers_total"), Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_first_token_the_stream_ends_with_an_error_and_what_was_delivered_is_charged() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Break(vec!["Hel", "lo"]));
    let events = harness.client.chat_stream(&harness.token, json!({})).await.events().await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "replica_lost");
    assert!(!events.iter().any(|event| event == "[DONE]"));
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!(charge.finish_reason, FinishReason::ReplicaLost);
    assert_eq!((charge.prompt_tokens, charge.generated_tokens), (prompt_tokens("hello"), 2));
    assert_eq!(charge.cached_prompt_tokens, CACHED_BEFORE_BREAK, "said with the first token");
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_another_replica_it_is_a_503_that_charges_nothing() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Break(vec![]));
    let answer = harness.client.chat(&harness.token, json!({})).await;
    let expected = (503, "service_unavailable".into(), Some("replica_lost".into()), None);
    assert_eq!(answer.error(), expected);
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!((charge.finish_reason, charge.prompt_tokens), (FinishReason::ReplicaLost, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_spread_over_replicas_that_are_equally_loaded() {
    let harness = Harness::new(2).await;
    for worker in &harness.workers {
        worker.script(Script::Hold(vec!["a"]));
    }
    let mut readings = Vec::new();
    for _ in 0..4 {
        let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
        reading.event().await.unwrap();
        readings.push(reading);
    }
    let spread: Vec<usize> = harness.workers.iter().map(|worker| worker.requests().len()).collect();
    assert_eq!(spread, [2, 2]);
}
