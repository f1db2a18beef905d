//! A gateway whose records go to Kafka.

use serde_json::json;

use crate::support::{Harness, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_holds_nothing_up_and_another_way_takes_over() {
    // Nothing listens on the discard port.
    let mut harness = Harness::with(1, |raw| raw.kafka.brokers = "127.0.0.1:9".into(), |_| ()).await;
    for _ in 0..3 {
        assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    }
    let failures = || harness.metric("weir_gateway_record_log_delivery_failures_total");
    eventually("the broker is tried", || failures().is_some_and(|failures| failures >= 1.0)).await;
    eventually("three wait", || harness.metric("weir_gateway_record_log_depth") == Some(3.0)).await;
    assert!(harness.ledger.charges().is_empty(), "the ledger is only asked how far it is");
    harness.stop().await;

    harness.configure(|raw| raw.kafka.brokers.clear());
    harness.start().await;
    harness.wait_ready().await;
    harness.ledger.wait_charges(3).await;
}
