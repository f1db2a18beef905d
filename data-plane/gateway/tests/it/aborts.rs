//! Clients that go away, at every stage: the worker is told, the record has the engine's counts, every permit is back.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use weir_schemas::records::FinishReason;

use crate::support::client::chat_body;
use crate::support::worker::Script;
use crate::support::{Harness, eventually, prompt_tokens};

#[tokio::test(flavor = "multi_thread")]
async fn mid_decode() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Hold(vec!["Hel", "lo"]));
    let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
    reading.event().await.unwrap();
    assert_eq!(harness.inflight(), 1.0);
    drop(reading);
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!(charge.finish_reason, FinishReason::Cancelled);
    assert_eq!((charge.prompt_tokens, charge.generated_tokens), (prompt_tokens("hello"), 2));
    assert_eq!((harness.workers[0].cancelled(), harness.inflight()), (1, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn mid_prefill_whether_streaming_or_not() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::HoldInPrefill { computed: 5 });
    for stream in [true, false] {
        let before = harness.workers[0].requests().len();
        {
            let asking = harness.client.chat(&harness.token, json!({"stream": stream}));
            let started = eventually("the worker has it", || harness.workers[0].requests().len() > before);
            tokio::select! {
                answer = asking => panic!("answered: {answer:?}"),
                () = started => {}
            }
        }
        let charges = harness.ledger.wait_charges(before + 1).await;
        let charge = &charges[before].data;
        assert_eq!((charge.prompt_tokens, charge.generated_tokens), (5, 0));
        assert_eq!((charge.finish_reason, charge.ttft_us), (FinishReason::Cancelled, None));
    }
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_last_token_it_is_what_the_engine_says() {
    let harness = Harness::new(1).await;
    for _ in 0..20 {
        let mut reading = harness.client.chat_stream(&harness.token, json!({})).await;
        reading.event().await.unwrap();
        drop(reading);
    }
    let charges = harness.ledger.wait_charges(20).await;
    assert!(charges.iter().all(|charge| charge.data.finish_reason == FinishReason::Stop));
    assert!(charges.iter().all(|charge| charge.data.generated_tokens == 2));
    assert_eq!(harness.inflight(), 0.0);
}

/// The answer is larger than every buffer on its way, and the client reads none of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_nothing_is_cut_off_and_charged() {
    let long: &'static str = Box::leak("x".repeat(8 << 10).into_boxed_str());
    let harness = Harness::with(1, |raw| raw.slow_reader_timeout_ms = 200, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec![long; 400]));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut stream = socket.connect(harness.client.address).await.unwrap();
    let body = chat_body(json!({"stream": true, "max_tokens": 500})).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        harness.token,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!((charge.finish_reason, charge.generated_tokens), (FinishReason::Cancelled, 400));
    assert_eq!(charge.prompt_tokens, prompt_tokens("hello"));
    assert_eq!(harness.workers[0].cancelled(), 1);
    eventually("every connection is closed", || harness.metric("weir_gateway_connections") == Some(0.0))
        .await;
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_at_random_moments_leave_nothing_behind() {
    let harness = Harness::with(
        1,
        |_| (),
        |config| {
            config.resources.leases[0].share.concurrent_sequences = Some(1_000);
        },
    )
    .await;
    let scripts = [
        Script::Hold(vec!["a"]),
        Script::HoldInPrefill { computed: 1 },
        Script::answer(&["a", "b"]),
        Script::Flood("x"),
    ];
    for at in 0..200u64 {
        harness.workers[0].script(scripts[usize::try_from(at % 4).unwrap()].clone());
        let asking = harness.client.chat(&harness.token, json!({"stream": true, "max_tokens": 50}));
        // Long enough, at times, for any stage to be the one that is interrupted.
        let patience = Duration::from_micros(at % 20 * 200);
        drop(tokio::time::timeout(patience, asking).await);
    }
    eventually("nothing runs", || harness.inflight() == 0.0 && harness.workers[0].running() == 0).await;
    let requests = harness.workers[0].requests().len();
    eventually("a record each", || {
        let with_replica = |charge: &&weir_schemas::records::ChargeRecord| !charge.data.replicas.is_empty();
        harness.ledger.charges().iter().filter(with_replica).count() == requests
    })
    .await;
    let mut ids: Vec<String> = harness.ledger.charges().iter().map(|charge| charge.id.clone()).collect();
    let number = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), number, "one record each");
    // All thousand permits are back: as many can be held at once.
    harness.workers[0].script(Script::answer(&["ok"]));
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_outlasts_its_deadline_is_ended_and_charged() {
    let harness = Harness::with(1, |raw| raw.request_timeout_ms = 1_000, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let events = harness.client.chat_stream(&harness.token, json!({})).await.events().await;
    assert!(events.last().unwrap().contains("deadline_exceeded"), "{events:?}");
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!((charge.finish_reason, charge.generated_tokens), (FinishReason::Deadline, 1));
    assert_eq!(harness.workers[0].cancelled(), 1);
}
