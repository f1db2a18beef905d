//! Idempotency-Key: one run, one answer and one charge, however often a request comes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weir_schemas::config_snapshot::{ConfigSnapshot, Key, QuotaLease, Tenant};
use weir_schemas::ids::{KeyId, TenantId};
use weir_schemas::records::FinishReason;
use weir_schemas::rpc::worker::FinishReason as WireReason;

use crate::support::client::{Answer, Reading, chat_body};
use crate::support::worker::Script;
use crate::support::{Harness, eventually};
use crate::testing::TokenClaims;

const CHAT: &str = "/v1/chat/completions";

async fn open(harness: &Harness, key: &str, change: Value) -> Reading {
    let body = serde_json::to_vec(&chat_body(change)).unwrap();
    harness.client.open_keyed(Method::POST, CHAT, Some(&harness.token), Some(key), body).await
}

async fn ask(harness: &Harness, key: &str, change: Value) -> Answer {
    open(harness, key, change).await.whole().await
}

fn outcome(harness: &Harness, outcome: &str) -> f64 {
    harness.metric(&format!("weir_gateway_idempotency_total{{outcome=\"{outcome}\"}}")).unwrap_or(0.0)
}

fn is_replayed(answer: &Answer) -> bool {
    answer.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

/// A script that waits in the middle of its answer, and what lets it go on.
fn gated() -> (Script, CancellationToken) {
    let gate = CancellationToken::new();
    (Script::Gated { before: vec!["Hel"], gate: gate.clone(), after: vec!["lo"] }, gate)
}

async fn wait_requests(harness: &Harness, number: usize) {
    eventually("the worker has it", || harness.workers[0].requests().len() == number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_joins_the_running_request_and_later_ones_are_replayed() {
    for stream in [true, false] {
        let harness = Harness::new(1).await;
        let (script, gate) = gated();
        harness.workers[0].script(script);
        let change = json!({"stream": stream});
        let (first, joined, _) = tokio::join!(
            ask(&harness, "k", change.clone()),
            async {
                wait_requests(&harness, 1).await;
                ask(&harness, "k", change.clone()).await
            },
            async {
                eventually("it joined", || outcome(&harness, "joined") == 1.0).await;
                gate.cancel();
            }
        );
        let replayed = ask(&harness, "k", change).await;
        for answer in [&first, &joined, &replayed] {
            assert_eq!((answer.status.as_u16(), &answer.body), (200, &first.body));
            assert_eq!(answer.headers["content-type"], first.headers["content-type"]);
            assert_eq!(is_replayed(answer), std::ptr::eq(answer, &replayed));
        }
        let text = String::from_utf8(first.body.to_vec()).unwrap();
        assert!(if stream { text.ends_with("data: [DONE]\n\n") } else { text.contains("Hello") }, "{text}");
        assert_ne!(first.headers["x-request-id"], joined.headers["x-request-id"]);
        assert_eq!((harness.workers[0].requests().len(), outcome(&harness, "replayed")), (1, 1.0));
        let charge = harness.ledger.wait_charges(1).await.remove(0).data;
        let hash = charge.idempotency_key_hash.unwrap();
        assert!(hash.starts_with("sha256:"));
        let billing = harness.workers[0].requests()[0].billing.clone().unwrap();
        assert_eq!(billing.idempotency_key_hash, Some(hash));
    }
}

/// With one key and no limits.
fn add_tenant(config: &mut ConfigSnapshot, id: TenantId, key: KeyId) {
    let resources = &mut config.resources;
    let lease = QuotaLease { tenant: id, ..resources.leases[0].clone() };
    let key = Key { id: key, tenant: id, ..resources.keys[0].clone() };
    let tenant = Tenant { id, ..resources.tenants[0].clone() };
    resources.leases.push(lease);
    resources.keys.push(key);
    resources.tenants.push(tenant);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_body_or_endpoint_is_a_409_while_it_runs_and_after_and_another_tenant_is_apart() {
    let other = TenantId::from_u128(71);
    let harness = Harness::with(1, |_| (), |config| add_tenant(config, other, KeyId::from_u128(72))).await;
    let (script, gate) = gated();
    harness.workers[0].script(script);
    let mut first = open(&harness, "k", json!({"stream": true})).await;
    first.event().await.unwrap();
    let reused = |answer: Answer| {
        assert_eq!(answer.headers["x-should-retry"], "false");
        let (code, param) = (Some("idempotency_key_reused".into()), Some("Idempotency-Key".into()));
        assert_eq!(answer.error(), (409, "invalid_request_error".into(), code, param));
    };
    reused(ask(&harness, "k", json!({"stream": false})).await);
    gate.cancel();
    assert_eq!(first.events().await.last().unwrap(), "[DONE]");
    reused(ask(&harness, "k", json!({"stream": true, "seed": 1})).await);
    let body = serde_json::to_vec(&chat_body(json!({"stream": true}))).unwrap();
    let prompt = json!({"model": crate::testing::MODEL, "prompt": "hello"}).to_string().into_bytes();
    let path = "/v1/completions";
    reused(
        harness
            .client
            .open_keyed(Method::POST, path, Some(&harness.token), Some("k"), prompt)
            .await
            .whole()
            .await,
    );
    assert_eq!((harness.workers[0].requests().len(), outcome(&harness, "conflict")), (1, 3.0));

    let claims = TokenClaims {
        sub: other.to_string(),
        jti: KeyId::from_u128(72).to_string(),
        ..TokenClaims::default()
    };
    let token = harness.issuer.token(&claims);
    let theirs =
        harness.client.open_keyed(Method::POST, CHAT, Some(&token), Some("k"), body).await.whole().await;
    assert_eq!((theirs.status.as_u16(), is_replayed(&theirs)), (200, false));
    let charges = harness.ledger.wait_charges(2).await;
    assert_ne!(charges[0].data.idempotency_key_hash, charges[1].data.idempotency_key_hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_answer_is_found_after_a_restart_until_a_day_has_passed() {
    let mut harness = Harness::new(1).await;
    let first = ask(&harness, "k", json!({})).await;
    harness.stop().await;
    harness.start().await;
    harness.wait_ready().await;
    let again = ask(&harness, "k", json!({})).await;
    assert_eq!((again.status.as_u16(), &again.body, is_replayed(&again)), (200, &first.body, true));
    harness.hours.store(24, std::sync::atomic::Ordering::Relaxed);
    let anew = ask(&harness, "k", json!({})).await;
    assert_eq!((anew.status.as_u16(), is_replayed(&anew)), (200, false));
    assert_ne!(anew.body, first.body);
    harness.ledger.wait_charges(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_answer_is_run_anew() {
    let mut harness = Harness::new(1).await;
    ask(&harness, "k", json!({})).await;
    harness.stop().await;
    let answers = harness.data_dir.path().join("answers");
    let file = std::fs::read_dir(&answers).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    harness.start().await;
    harness.wait_ready().await;
    assert!(!is_replayed(&ask(&harness, "k", json!({})).await));
    assert!(is_replayed(&ask(&harness, "k", json!({})).await));
    assert_eq!(harness.workers[0].requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_not_kept_and_a_bad_key_is_a_400() {
    let harness = Harness::new(1).await;
    let code = async |change| ask(&harness, "k", change).await.error().2.unwrap();
    assert_eq!(code(json!({"model": "unknown"})).await, "model_not_found");
    // Another body, since nothing ran.
    assert_eq!(code(json!({"max_tokens": 5_000})).await, "context_length_exceeded");
    harness.workers[0].script(Script::Refuse(WireReason::RefusedFull));
    for _ in 0..6 {
        assert_eq!(code(json!({})).await, "capacity_exhausted");
    }
    harness.workers[0].script(Script::answer(&["ok"]));
    assert_eq!(ask(&harness, "k", json!({})).await.status, 200);
    let code = Some("invalid_value".to_owned());
    let bad = ask(&harness, "no spaces", json!({})).await.error();
    assert_eq!(bad, (400, "invalid_request_error".into(), code, Some("Idempotency-Key".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_outlives_its_client_and_is_charged_once() {
    let harness = Harness::new(1).await;
    for (at, stream) in [(0, true), (1, false)] {
        let (script, gate) = gated();
        harness.workers[0].script(script);
        let (key, change) = (format!("k{at}"), json!({"stream": stream}));
        tokio::select! {
            answer = ask(&harness, &key, change.clone()) => panic!("answered: {answer:?}"),
            () = wait_requests(&harness, at + 1) => {}
        }
        eventually("its client is gone", || harness.metric("weir_gateway_connections") == Some(0.0)).await;
        assert_eq!(harness.inflight(), 1.0);
        gate.cancel();
        let charges = harness.ledger.wait_charges(at + 1).await;
        assert_eq!(
            (charges[at].data.finish_reason, charges[at].data.generated_tokens),
            (FinishReason::Stop, 2)
        );
        let again = ask(&harness, &key, change).await;
        assert!(again.status == 200 && is_replayed(&again));
        let text = String::from_utf8(again.body.to_vec()).unwrap();
        assert!(text.contains("lo\"") && text.contains(charges[at].id.trim_start_matches("req_")), "{text}");
    }
    assert_eq!((harness.workers[0].requests().len(), harness.workers[0].cancelled()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_grace_it_is_cancelled_and_repeats_run_anew_a_bounded_number_of_times() {
    let harness = Harness::with(1, |raw| raw.idempotency_grace_ms = 50, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a", "b"]));
    for at in 0..4 {
        let mut reading = open(&harness, "k", json!({"stream": true})).await;
        assert_eq!(reading.status, 200);
        reading.event().await.unwrap();
        drop(reading);
        let charge = harness.ledger.wait_charges(at + 1).await.remove(at).data;
        assert_eq!((charge.finish_reason, charge.generated_tokens), (FinishReason::Cancelled, 2));
    }
    // The ledger charges the first of them.
    let charges = harness.ledger.charges();
    assert!(
        charges.iter().all(|charge| charge.data.idempotency_key_hash == charges[0].data.idempotency_key_hash)
    );
    assert_eq!((harness.workers[0].cancelled(), outcome(&harness, "abandoned")), (4, 4.0));
    let spent = ask(&harness, "k", json!({"stream": true})).await;
    assert_eq!(spent.error().2.as_deref(), Some("idempotency_key_spent"));
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_failed_on_its_way_is_run_anew() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Answer { texts: vec!["a"], reason: WireReason::Error, cached: 0 });
    let failed = open(&harness, "k", json!({"stream": true})).await.events().await;
    assert!(failed.last().unwrap().contains("engine_failed"), "{failed:?}");
    harness.workers[0].script(Script::answer(&["ok"]));
    let again = open(&harness, "k", json!({"stream": true})).await.events().await;
    assert_eq!(again.last().unwrap(), "[DONE]");
    let charges = harness.ledger.wait_charges(2).await;
    assert_eq!(charges[0].data.idempotency_key_hash, charges[1].data.idempotency_key_hash);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_what_nobody_reads_and_a_repeat_after_it_runs_anew() {
    let mut harness = Harness::with(1, |raw| raw.drain_timeout_ms = 50, |_| ()).await;
    harness.workers[0].script(Script::Hold(vec!["a", "b"]));
    let mut reading = open(&harness, "k", json!({"stream": true})).await;
    reading.event().await.unwrap();
    drop(reading);
    harness.stop().await;
    let charge = harness.ledger.charges().remove(0).data;
    assert_eq!((charge.finish_reason, charge.generated_tokens), (FinishReason::Cancelled, 2));
    harness.start().await;
    harness.wait_ready().await;
    harness.workers[0].script(Script::answer(&["ok"]));
    let anew = ask(&harness, "k", json!({"stream": true})).await;
    assert_eq!((anew.status.as_u16(), is_replayed(&anew)), (200, false));
    let charges = harness.ledger.wait_charges(2).await;
    assert_eq!(charges[1].data.idempotency_key_hash, charge.idempotency_key_hash);
}

/// Everything of a directory, as it stands.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Another gateway starts from what the disk holds while the request runs, which is what a kill leaves.
#[tokio::test(flavor = "multi_thread")]
async fn what_ran_when_the_gateway_was_killed_runs_anew_under_the_same_hash() {
    let mut harness = Harness::new(1).await;
    harness.workers[0].script(Script::Hold(vec!["a", "b"]));
    let mut cut_off = open(&harness, "k", json!({"stream": true})).await;
    cut_off.event().await.unwrap();
    // Its progress is noted within a second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let killed = tempfile::tempdir().unwrap();
    copy(harness.data_dir.path(), killed.path());
    let _still_running = harness.running.take();
    harness.configure(|raw| raw.data_dir = killed.path().to_owned());
    harness.start().await;
    harness.wait_ready().await;
    let recovered = harness.ledger.wait_charges(1).await.remove(0).data;
    assert!(recovered.recovered && recovered.generated_tokens == 2);

    let reused = ask(&harness, "k", json!({"stream": false})).await;
    assert_eq!(reused.error().2.as_deref(), Some("idempotency_key_reused"));
    harness.workers[0].script(Script::answer(&["ok"]));
    let anew = ask(&harness, "k", json!({"stream": true})).await;
    assert_eq!((anew.status.as_u16(), is_replayed(&anew)), (200, false));
    let charges = harness.ledger.wait_charges(2).await;
    assert_eq!(charges[1].data.idempotency_key_hash, recovered.idempotency_key_hash);
    assert!(is_replayed(&ask(&harness, "k", json!({"stream": true})).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_at_once_get_one_answer() {
    let harness = Arc::new(Harness::new(1).await);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let harness = harness.clone();
        clients.spawn(async move { ask(&harness, "k", json!({"stream": true})).await.body });
    }
    let answers = clients.join_all().await;
    assert!(answers.iter().all(|answer| *answer == answers[0] && answer.ends_with(b"data: [DONE]\n\n")));
    assert_eq!(harness.workers[0].requests().len(), 1);
    assert_eq!(outcome(&harness, "joined") + outcome(&harness, "replayed"), 49.0);
    harness.ledger.wait_charges(1).await;
}
