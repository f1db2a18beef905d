//! A shared prefix is computed once for each tenant, and never shared between tenants.

use serde_json::{Value, json};
use weir_tests::api::Api;
use weir_tests::installation::Installation;
use weir_tests::ledger::Ledger;
use weir_tests::metrics::Scrape;

const BLOCK_TOKENS: u64 = 16;

fn body(question: &str) -> Value {
    let system = "You are the keeper of a lighthouse on a small island. You answer in one sentence, you never hurry, and you always mention the weather. "
        .repeat(4);
    json!({
        "model": weir_tests::installation::MODEL, "max_tokens": 8, "temperature": 0,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
    })
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_whole_blocks_of_the_shared_prefix_are_taken_from_the_cache() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let now = chrono::Utc::now();
    let first = operator.create_tenant("first", json!({}), now).await;
    let second = operator.create_tenant("second", json!({}), now).await;
    let ask = |api: Api, question: &'static str| async move {
        let (status, answer) = api.post("/chat/completions", &body(question)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };

    let cold = ask(first.api.clone(), "Is the light on?").await;
    assert_eq!(cached(&cold), 0);
    let prompt = cold["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 5 * BLOCK_TOKENS, "several blocks: {prompt}");

    // The same prompt again: all whole blocks but what the last token needs, and the same text.
    let computed = |scrape: &Scrape| scrape.sum("weir_worker_prefill_tokens_total", "");
    let before = computed(&Scrape::of(&installation).await);
    let warm = ask(first.api.clone(), "Is the light on?").await;
    let expected = (prompt - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    assert_eq!(cached(&warm), expected);
    assert_eq!(warm["choices"][0]["message"]["content"], cold["choices"][0]["message"]["content"]);
    let after = computed(&Scrape::of(&installation).await);
    assert_eq!(
        after - before,
        (prompt - expected) as f64,
        "computed prefill falls by exactly the cached tokens"
    );

    // Another question under the same system prompt: the blocks before the first difference.
    let other = ask(first.api.clone(), "Which ships passed today?").await;
    assert!(
        cached(&other) > 4 * BLOCK_TOKENS && cached(&other).is_multiple_of(BLOCK_TOKENS),
        "{}",
        cached(&other)
    );
    assert!(cached(&other) < other["usage"]["prompt_tokens"].as_u64().unwrap());

    // The same prompt from another tenant gets none, and the same text.
    let foreign = ask(second.api.clone(), "Is the light on?").await;
    assert_eq!(cached(&foreign), 0);
    assert_eq!(foreign["choices"][0]["message"]["content"], cold["choices"][0]["message"]["content"]);

    let (charges, executions) = Ledger::of(&installation).await.settled(&first.id, 3, 3).await;
    let charged: Vec<i64> = charges.iter().map(|charge| charge.cached_prompt_tokens).collect();
    assert_eq!(charged, [0, cached(&warm), cached(&other)].map(|tokens| i64::try_from(tokens).unwrap()));
    assert_eq!(executions.iter().map(|execution| execution.cached_tokens).collect::<Vec<_>>(), charged);
    assert!(charges[1].amount < charges[0].amount, "cached prompt tokens cost less");
}
