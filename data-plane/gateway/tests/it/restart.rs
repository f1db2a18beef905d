//! Stopping and starting again.

use serde_json::json;
use weir_schemas::config_snapshot::Limits;
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

#[tokio::test(flavor = "multi_thread")]
async fn while_it_drains_it_says_so_and_takes_nothing_new() {
    let mut harness = Harness::with(1, |raw| raw.drain_timeout_ms = 60_000, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
    reading.event().await.unwrap();
    harness.cancel.cancel();
    let refused = loop {
        let answer = harness.client.chat(&harness.token, json!({"max_tokens": 1, "model": "unknown"})).await;
        if answer.status == 503 {
            break answer;
        }
    };
    let expected = (503, "service_unavailable".into(), Some("gateway_stopping".into()), None);
    assert_eq!(refused.error(), expected);
    assert!(refused.headers.contains_key("retry-after"));
    // New connections are still taken, for whoever wants to know.
    let ready = harness.client.get("/readyz", None).await;
    assert_eq!((ready.status.as_u16(), &ready.body[..]), (503, &b"stopping\n"[..]));
    assert_eq!(harness.client.get("/healthz", None).await.status, 200);
    drop(reading);
    harness.stop().await;
    assert_eq!(harness.ledger.charges().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_stop_notice_it_is_not_ready_and_still_serves() {
    let mut harness = Harness::with(1, |raw| raw.stop_notice_ms = 2_000, |_| ()).await;
    harness.cancel.cancel();
    let ready = loop {
        let ready = harness.client.get("/readyz", None).await;
        if ready.status == 503 {
            break ready;
        }
    };
    assert_eq!(&ready.body[..], b"stopping\n");
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    harness.stop().await;
    assert_eq!(harness.ledger.charges().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_gives_no_burst() {
    let share =
        Limits { requests_per_minute: Some(10), tokens_per_minute: Some(10_000), ..Limits::default() };
    let mut harness = Harness::with(1, |_| (), |config| config.resources.leases[0].share = share).await;
    for _ in 0..10 {
        assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    }
    harness.ledger.wait_charges(10).await;
    harness.stop().await;
    harness.start().await;
    harness.wait_ready().await;
    let refused = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.error().2), (429, Some("rate_limit_exceeded".into())));
    let used = 10 * (prompt_tokens("hello") + 2);
    let remaining: u64 = refused.headers["x-ratelimit-remaining-tokens"].to_str().unwrap().parse().unwrap();
    // What has been refilled since the start is a little more than nothing.
    assert!((10_000 - used..10_000).contains(&remaining), "{remaining}");
}
