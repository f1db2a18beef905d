//! What a deployment's policies make of requests that would have to wait, as clients see it and as it is recorded.

use std::time::Duration;

use serde_json::json;
use weir_schemas::config_snapshot::{Alias, AliasTarget, Deployment, Overload, OverloadPolicy, QueueBounds};
use weir_schemas::ids::{AliasId, DeploymentId, VersionId};
use weir_schemas::records::{ChargeRecord, FinishReason, RejectionReason, Tier};

use crate::support::client::Answer;
use crate::support::worker::Script;
use crate::support::{Harness, eventually};
use crate::testing::{MODEL, version};

const BOUNDS: QueueBounds = QueueBounds { max_depth: 8, max_wait_ms: 60_000 };
const SMALLER: VersionId = VersionId::from_u128(77);

/// All seats of the first worker are taken: a request waits for a second, which is over the target of 200 ms.
async fn fill(harness: &Harness) {
    harness.workers[0].report(|load| {
        (load.running, load.seats, load.answer_tokens) = (64, 64, 100.0);
        (load.decode_tokens_per_s, load.prefill_tokens_per_s) = (100.0, 1e6);
    });
    expect_wait(harness, 1_000).await;
}

async fn expect_wait(harness: &Harness, at_least_ms: u64) {
    for _ in 0..500 {
        let answer = harness.client.chat(&harness.token, json!({"priority": "batch"})).await;
        if expected_ttft_ms(&answer) >= at_least_ms {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the gateway never learnt of the load");
}

fn expected_ttft_ms(answer: &Answer) -> u64 {
    answer.headers["x-weir-expected-ttft-ms"].to_str().unwrap().parse().unwrap()
}

/// Interactive requests have the policy, those of batch wait.
async fn harness(workers: usize, interactive: OverloadPolicy) -> Harness {
    let overload = Overload { interactive, batch: OverloadPolicy::Queue { bounds: BOUNDS } };
    Harness::with(workers, |_| (), |config| config.resources.deployments[0].overload = overload).await
}

#[tokio::test(flavor = "multi_thread")]
async fn shed_refuses_what_would_be_late_and_batch_has_a_policy_of_its_own() {
    let mut harness = harness(1, OverloadPolicy::Shed).await;
    let before = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!((before.status.as_u16(), before.headers.contains_key("x-weir-overload")), (200, false));
    fill(&harness).await;
    let shed = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(shed.error().2.as_deref(), Some("capacity_exhausted"));
    assert_eq!((shed.headers["retry-after"].as_bytes(), expected_ttft_ms(&shed)), (&b"1"[..], 1_000));
    assert_eq!(shed.headers["x-weir-slo-breach"], "true");
    let batch = harness.client.chat(&harness.token, json!({"priority": "batch"})).await;
    assert_eq!(batch.status, 200);
    let refused =
        "weir_gateway_overload_total{model=\"small-model\",class=\"interactive\",action=\"refused\"}";
    assert_eq!(harness.metric(refused), Some(1.0));
    harness.workers[0].report(|load| load.running = 0);
    for _ in 0..500 {
        if harness.client.chat(&harness.token, json!({})).await.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
    harness.stop().await;
    let rejections = harness.ledger.rejections();
    assert!(rejections.iter().all(|rejection| rejection.data.reason == RejectionReason::Capacity));
    assert!(!rejections.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn shrink_cuts_the_answer_and_says_so() {
    let harness = harness(1, OverloadPolicy::Shrink { max_output_tokens: 3, bounds: BOUNDS }).await;
    fill(&harness).await;
    harness.workers[0].script(Script::Flood("x"));
    for n in [1, 2] {
        let shrunk = harness.client.chat(&harness.token, json!({"max_tokens": 40, "n": n})).await;
        assert_eq!(shrunk.headers["x-weir-overload"], "shrink");
        assert_eq!(shrunk.headers["x-weir-granted-max-tokens"], "3");
        let answer = shrunk.json();
        assert_eq!(answer["choices"][n - 1]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3 * n);
    }
    // What is short by itself, and what waits as batch, is not touched.
    for body in [json!({"max_tokens": 3}), json!({"max_tokens": 5, "priority": "batch"})] {
        let whole = harness.client.chat(&harness.token, body.clone()).await;
        assert!(!whole.headers.contains_key("x-weir-overload"));
        assert_eq!(whole.json()["usage"]["completion_tokens"], body["max_tokens"]);
    }
    // The last of the five that could come is the one that is looked for.
    let last = |charge: &ChargeRecord| charge.data.generated_tokens == 5 && charge.data.tier == Tier::Batch;
    harness.ledger.wait_charge(last).await;
    let charges = harness.ledger.charges();
    let granted = charges.iter().filter_map(|charge| charge.data.granted_max_tokens.zip(Some(charge.data.n)));
    assert_eq!(granted.collect::<Vec<_>>(), [(3, 1), (3, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_refused_when_it_is_full_and_given_up_when_it_is_too_slow() {
    let bounds = QueueBounds { max_depth: 2, max_wait_ms: 2_500 };
    let harness = harness(1, OverloadPolicy::Queue { bounds }).await;
    fill(&harness).await;
    // It begins in time, and may then take as long as it takes.
    harness.workers[0].script(Script::Hold(vec!["begun"]));
    let mut begun = harness.client.chat_stream(&harness.token, json!({})).await;
    assert!(begun.event().await.is_some());
    harness.workers[0].script(Script::HoldInPrefill { computed: 0 });
    let late = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(late.error().2.as_deref(), Some("capacity_exhausted"));
    assert!(late.headers.contains_key("retry-after") && expected_ttft_ms(&late) >= 1_000);
    assert_eq!(harness.workers[0].running(), 1, "the one that has begun");
    let charge =
        harness.ledger.wait_charge(|charge| charge.data.finish_reason == FinishReason::Rejected).await;
    assert_eq!((charge.data.prompt_tokens, charge.data.generated_tokens), (0, 0));
    // Two wait already.
    let requests = harness.workers[0].requests().len();
    harness.workers[0].report(|load| load.waiting_interactive = 2);
    eventually("the gateway knows", || {
        harness.metric("weir_gateway_queue_depth{model=\"small-model\"}") == Some(2.0)
    })
    .await;
    let full = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!((full.status.as_u16(), &full.headers["x-weir-queue-depth"]), (429, &"2".parse().unwrap()));
    assert_eq!(harness.workers[0].requests().len(), requests);
}

/// The second worker serves a smaller model.
async fn overflowing(may_overflow: bool) -> Harness {
    let overflow = OverloadPolicy::Overflow { model: "smaller".into(), bounds: BOUNDS };
    let harness = Harness::with(
        2,
        |_| (),
        |config| {
            let resources = &mut config.resources;
            resources.tenants[0].may_overflow = may_overflow;
            resources.deployments[0].overload.interactive = overflow;
            let smaller = Deployment {
                id: DeploymentId::from_u128(6),
                version: SMALLER,
                pool: "small".into(),
                overload: Overload::default(),
                ..resources.deployments[0].clone()
            };
            resources.deployments.push(smaller);
            resources.replicas[1].pool = "small".into();
            let mut version = resources.versions[0].clone();
            version.id = SMALLER;
            resources.versions.push(version);
            resources.aliases.push(Alias {
                id: AliasId::from_u128(8),
                name: "smaller".into(),
                targets: vec![AliasTarget { version: SMALLER, weight: 1 }],
                ..resources.aliases[0].clone()
            });
        },
    )
    .await;
    harness.workers[1].report(|load| load.version_id = SMALLER.to_string());
    for _ in 0..500 {
        if harness.client.chat(&harness.token, json!({"model": "smaller"})).await.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fill(&harness).await;
    harness
}

#[tokio::test(flavor = "multi_thread")]
async fn overflow_serves_from_the_smaller_model_where_the_tenant_agreed() {
    let harness = overflowing(true).await;
    let known = harness.workers[1].requests().len();
    let answer = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(answer.json()["model"], "smaller");
    assert_eq!(answer.headers["x-weir-overload"], "overflow");
    assert_eq!(harness.workers[1].requests().len(), known + 1);
    let charge = harness
        .ledger
        .wait_charge(|charge| charge.data.version == SMALLER && charge.data.requested_model == MODEL);
    assert!(charge.await.data.generated_tokens > 0);
    // One that the smaller model cannot read waits.
    let long = json!({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"300": 1}});
    assert_eq!(harness.client.chat(&harness.token, long).await.status, 400);
    // The smaller one is full too: it waits, and gets what it asked for.
    harness.workers[1].report(|load| (load.running, load.seats, load.decode_tokens_per_s) = (64, 64, 1.0));
    for _ in 0..500 {
        let answer = harness.client.chat(&harness.token, json!({})).await;
        assert_eq!(answer.status, 200);
        if !answer.headers.contains_key("x-weir-overload") {
            assert_eq!(answer.json()["model"], MODEL);
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it went on overflowing");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_did_not_agree_waits_for_what_was_asked_for() {
    let harness = overflowing(false).await;
    let answer = harness.client.chat(&harness.token, json!({})).await;
    assert!(expected_ttft_ms(&answer) >= 1_000 && !answer.headers.contains_key("x-weir-overload"));
    assert_eq!(answer.json()["model"], MODEL);
    let charge = harness.ledger.wait_charge(|charge| charge.data.requested_model == MODEL).await;
    assert_eq!(charge.data.version, version());
}
