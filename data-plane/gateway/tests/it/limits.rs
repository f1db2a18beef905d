//! Rate, concurrency and budget, as clients see them and as they are recorded.

use std::time::Duration;

use serde_json::json;
use weir_schemas::config_snapshot::{BudgetState, ConfigSnapshot, Limits, ResourceType};
use weir_schemas::records::RejectionReason;
use weir_schemas::rpc::worker::{FinishReason, VersionState};

use crate::support::client::Answer;
use crate::support::worker::Script;
use crate::support::{Harness, eventually, prompt_tokens};
use crate::testing::{MODEL, tenant};

fn rate_limited(code: &str) -> (u16, String, Option<String>, Option<String>) {
    let kind = if code == "insufficient_quota" { code } else { "rate_limit_error" };
    (429, kind.into(), Some(code.into()), None)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_a_minute_settle_to_what_was_used() {
    let share = Limits { tokens_per_minute: Some(1_000), requests_per_minute: Some(50), ..Limits::default() };
    let harness = Harness::with(1, |_| (), |config| config.resources.leases[0].share = share).await;
    let prompt = prompt_tokens("hello");
    let first = harness.client.chat(&harness.token, json!({"max_tokens": 100})).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.headers["x-ratelimit-limit-tokens"], "1000");
    assert_eq!(first.headers["x-ratelimit-remaining-tokens"], (1_000 - prompt - 100).to_string().as_str());
    assert_eq!(first.headers["x-ratelimit-remaining-requests"], "49");
    assert!(first.headers.contains_key("x-ratelimit-reset-tokens"));
    // Two tokens were generated, not 100. (A moment's refill may add a token or two.)
    let second = harness.client.chat(&harness.token, json!({"max_tokens": 100})).await;
    let remaining: u64 = second.headers["x-ratelimit-remaining-tokens"].to_str().unwrap().parse().unwrap();
    assert!(remaining >= 1_000 - 2 * prompt - 2 - 100, "{remaining}");

    let long = |length| {
        let messages = json!([{"role": "user", "content": "x".repeat(length)}]);
        json!({"messages": messages, "max_tokens": 1})
    };
    assert_eq!(harness.client.chat(&harness.token, long(800)).await.status, 200);
    // It would take twenty seconds until there is room for this.
    let refused = harness.client.chat(&harness.token, long(500)).await;
    assert_eq!(refused.error(), rate_limited("rate_limit_exceeded"));
    assert!(refused.headers.contains_key("retry-after"));
    assert!(refused.headers.contains_key("x-ratelimit-limit-tokens"));
    assert_eq!(harness.workers[0].requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_input_is_limited_apart_and_a_raised_limit_applies_without_a_burst() {
    let input = |tokens| Limits { input_tokens_per_minute: Some(tokens), ..Limits::default() };
    let set = |config: &mut ConfigSnapshot, tokens| {
        config.resources.tenants[0].model_limits = [(MODEL.to_owned(), input(tokens))].into();
        config.resources.leases[0].model_shares = [(MODEL.to_owned(), input(tokens))].into();
    };
    let prompt = prompt_tokens("hello");
    let harness = Harness::with(1, |_| (), |config| set(config, 2 * prompt - 1)).await;
    let ask = async || harness.client.chat(&harness.token, json!({"max_tokens": 100})).await;
    assert_eq!(ask().await.status, 200);
    let refused = ask().await;
    assert_eq!(refused.error(), rate_limited("rate_limit_exceeded"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    let start = format!("Rate limit reached for `{MODEL}` in this tenant on input tokens per min: Limit ");
    assert!(message.starts_with(&start) && message.contains("Please try again in "), "{message}");
    let remaining = |answer: &Answer| -> u64 {
        answer.headers["x-ratelimit-remaining-tokens"].to_str().unwrap().parse().unwrap()
    };
    // A thousand prompts a minute: what was left stays, and the rest has to be earned.
    harness.control_plane.change(|config| set(config, 1_000 * prompt));
    let mut raised = ask().await;
    for _ in 0..500 {
        if raised.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        raised = ask().await;
    }
    assert_eq!(raised.headers["x-ratelimit-limit-tokens"], (1_000 * prompt).to_string().as_str());
    assert!(remaining(&raised) < 500 * prompt, "{}", remaining(&raised));
    assert_eq!(harness.workers[0].requests().len(), 2, "a refused request reaches no worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sequences_and_the_permit_comes_back() {
    let share = Limits { concurrent_sequences: Some(1), ..Limits::default() };
    let harness = Harness::with(1, |_| (), |config| config.resources.leases[0].share = share).await;
    harness.workers[0].script(Script::Hold(vec!["a"]));
    let mut holding = harness.client.chat_stream(&harness.token, json!({})).await;
    holding.event().await.unwrap();
    let refused = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(refused.error(), rate_limited("rate_limit_exceeded"));
    drop(holding);
    harness.ledger.wait_charges(1).await;
    harness.workers[0].script(Script::answer(&["ok"]));
    assert_eq!(harness.client.chat(&harness.token, json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_or_with_a_spent_budget_there_is_none_and_refusals_are_counted() {
    let mut harness = Harness::with(1, |_| (), |config| config.resources.leases.clear()).await;
    for _ in 0..3 {
        let refused = harness.client.chat(&harness.token, json!({})).await;
        assert_eq!(refused.error(), rate_limited("rate_limit_exceeded"));
    }
    harness.control_plane.change(|config| {
        config.resources.budgets.push(BudgetState { tenant: tenant(), exhausted: true });
    });
    eventually("the budget is known", || harness.control_plane.applied(ResourceType::Budgets) == 2).await;
    let refused = harness.client.chat(&harness.token, json!({})).await;
    assert_eq!(refused.error(), rate_limited("insufficient_quota"));
    assert!(!refused.headers.contains_key("retry-after"));
    harness.stop().await;
    let mut counts: Vec<_> =
        harness.ledger.rejections().iter().map(|r| (r.data.reason, r.data.count, r.data.tenant)).collect();
    counts.sort_unstable();
    let expected = [(RejectionReason::RateLimit, 3, tenant()), (RejectionReason::Budget, 1, tenant())];
    assert_eq!(counts, expected);
    assert!(harness.ledger.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_or_warming_platform_says_so_and_charges_nothing() {
    let harness = Harness::with(
        1,
        |_| (),
        |config| {
            config.resources.leases[0].share = Limits { requests_per_minute: Some(2), ..Limits::default() };
        },
    )
    .await;
    harness.workers[0].script(Script::Refuse(FinishReason::RefusedFull));
    // More often than the limit allows: a refused request consumes nothing.
    for _ in 0..4 {
        let full = harness.client.chat(&harness.token, json!({})).await;
        assert_eq!(full.error(), rate_limited("capacity_exhausted"));
        assert!(full.headers.contains_key("retry-after"));
    }
    harness.workers[0].report(|load| load.state = VersionState::Loading.into());
    let probe = harness.running.as_ref().unwrap().ready_probe();
    eventually("the gateway knows", || probe().is_err()).await;
    let warming = harness.client.chat(&harness.token, json!({})).await;
    let expected = (503, "service_unavailable".into(), Some("model_warming".into()), None);
    assert_eq!(warming.error(), expected);
    assert!(warming.headers.contains_key("retry-after"));
    let charges = harness.ledger.wait_charges(4).await;
    assert!(charges.iter().all(|charge| charge.data.prompt_tokens + charge.data.generated_tokens == 0));
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_would_outlast_the_deadline_is_refused_at_once() {
    let harness = Harness::new(1).await;
    let queue = |tokens: u64| {
        harness.workers[0].report(|load| {
            (load.queued_prefill_tokens, load.prefill_tokens_per_s) = (tokens, 100.0);
        });
    };
    queue(100 * 3600);
    let mut answer = harness.client.chat(&harness.token, json!({})).await;
    for _ in 0..200 {
        if answer.status == 429 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        answer = harness.client.chat(&harness.token, json!({})).await;
    }
    assert_eq!(answer.error(), rate_limited("capacity_exhausted"));
    assert_eq!(answer.headers["retry-after"], "60");
    // What waits long, but not too long, is told so and served.
    queue(100 * 2);
    let mut answer = harness.client.chat(&harness.token, json!({})).await;
    for _ in 0..200 {
        if answer.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        answer = harness.client.chat(&harness.token, json!({})).await;
    }
    assert_eq!(answer.headers["x-weir-slo-breach"], "true");
    assert!(answer.headers["x-weir-expected-ttft-ms"].to_str().unwrap().parse::<u64>().unwrap() >= 2000);
    assert_eq!(answer.headers["x-weir-queue-depth"], "0");
}

/// A `max_tokens` of far more than a minute's limit is admitted by what answers lately needed. What needs more takes it,
/// and is ended where limit and debt are used up; what its worker had computed by then is told and charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_generous_max_tokens_is_admitted_and_an_answer_ends_where_the_limit_does() {
    let prompt = prompt_tokens("hello");
    let limit = 700 + 10 * prompt;
    let share = Limits { tokens_per_minute: Some(limit), ..Limits::default() };
    let harness = Harness::with(1, |_| (), |config| config.resources.leases[0].share = share).await;
    let generous = json!({"max_tokens": 900});
    for _ in 0..8 {
        assert_eq!(harness.client.chat(&harness.token, generous.clone()).await.status, 200);
    }
    // More than the two tokens that are expected by now, and less than what is left.
    harness.workers[0].script(Script::answer(&["a"; 40]));
    let longer = harness.client.chat(&harness.token, generous.clone()).await;
    let choice = &longer.json()["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("stop"), &json!("a".repeat(40)))
    );
    assert_eq!(harness.workers[0].cancelled(), 0);

    let texts = vec!["a"; usize::try_from(2 * limit).unwrap()];
    harness.workers[0].script(Script::Hold(texts.clone()));
    let cut = harness.client.chat(&harness.token, generous.clone()).await;
    let choice = &cut.json()["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("length"), &json!(texts.concat()))
    );
    assert_eq!(cut.json()["usage"]["completion_tokens"], 2 * limit);
    assert!(harness.workers[0].cancelled() >= 1);
    let charge = harness.ledger.wait_charges(10).await.pop().unwrap().data;
    assert_eq!(
        (charge.finish_reason, charge.generated_tokens),
        (weir_schemas::records::FinishReason::Length, 2 * limit)
    );
    let refused = harness.client.chat(&harness.token, generous).await;
    assert_eq!(refused.error(), rate_limited("rate_limit_exceeded"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(harness.metric("weir_gateway_answers_cut_by_limits_total"), Some(1.0));
    assert_eq!(harness.inflight(), 0.0);
}
