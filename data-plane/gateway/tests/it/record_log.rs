//! The record log without room: new requests are refused, running ones are charged, and it heals.

use serde_json::json;

use crate::support::worker::Script;
use crate::support::{Harness, eventually};

/// The least bound that the configuration allows.
const MAX_BYTES: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_record_log_refuses_new_requests_and_charges_every_running_one() {
    let harness = Harness::with(1, |raw| raw.record_log_max_bytes = MAX_BYTES, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let mut running = Vec::new();
    let refused = loop {
        let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
        if reading.status != 200 {
            break reading;
        }
        reading.event().await.unwrap();
        running.push(reading);
        assert!(running.len() < 1_000, "each holds the room for its progress and its close");
    };
    assert!(running.len() > 100, "{}", running.len());
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    let answer = harness.client.chat(&harness.token, json!({})).await;
    let expected = (503, "service_unavailable".into(), Some("record_log_full".into()), None);
    assert_eq!(answer.error(), expected);
    let ready = harness.client.get("/readyz", None).await;
    assert_eq!(ready.status, 503);
    assert!(String::from_utf8_lossy(&ready.body).contains("record log"), "{:?}", ready.body);
    eventually("the alert's gauge", || harness.metric("weir_gateway_record_log_refusing") == Some(1.0)).await;
    assert!(harness.metric("weir_gateway_record_log_refused_entries") >= Some(2.0));

    let number = running.len();
    drop(running);
    let charges = harness.ledger.wait_charges(number).await;
    assert!(charges.iter().all(|charge| charge.data.generated_tokens == 1 && !charge.data.recovered));
    // The ledger has it all, so there is room again, and nobody needs to ask for the gauge to say so.
    eventually("the alert is over", || harness.metric("weir_gateway_record_log_refusing") == Some(0.0)).await;
    harness.workers[0].script(Script::answer(&["ok"]));
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    harness.ledger.wait_charges(number + 1).await;
}
