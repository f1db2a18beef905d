//! Continuous batching is real: what arrives later and is shorter ends first, and the engine executes steps, not
//! sequences times tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use weir_tests::api::{Api, events};
use weir_tests::installation::{Installation, MODEL};
use weir_tests::metrics::Scrape;
use weir_tests::wait::until;

const LONG_TOKENS: u32 = 400;
const SHORT_TOKENS: u32 = 12;

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_short_answers_overtake_a_long_one() {
    let installation = Installation::start();
    let api = Api::first_tenant(&installation);
    let before = Scrape::of(&installation).await;
    // Counting does not end by itself: the length must be known for the number of steps.
    let long_done = Arc::new(AtomicBool::new(false));
    let long = tokio::spawn({
        let (api, long_done) = (api.clone(), long_done.clone());
        async move {
            let body = json!({
                "model": MODEL, "prompt": "1, 2, 3, 4, 5, 6, 7,", "max_tokens": LONG_TOKENS, "temperature": 0,
                "stream": true, "stream_options": {"include_usage": true},
            });
            let request = serde_json::to_vec(&body).unwrap();
            let events = events(api.send(Method::POST, "/completions", request).await.unwrap()).await;
            long_done.store(true, Ordering::SeqCst);
            events
        }
    });
    until("the long answer runs", || async {
        (Scrape::of(&installation).await.sum("weir_worker_running", "") >= 1.0).then_some(())
    })
    .await;

    let short = (0..15).map(|number| {
        let (api, long_done) = (api.clone(), long_done.clone());
        async move {
            let answer = api
                .chat(
                    &format!("Say something about the number {number}."),
                    json!({"max_tokens": SHORT_TOKENS}),
                )
                .await;
            assert!(!long_done.load(Ordering::SeqCst), "the long answer ended before short answer {number}");
            answer["usage"]["completion_tokens"].as_u64().unwrap()
        }
    });
    let short_tokens: u64 = join_all(short).await.into_iter().sum();
    let events = long.await.unwrap();
    let usage = &events[events.len() - 2]["usage"];
    let long_tokens = usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(long_tokens, u64::from(LONG_TOKENS), "the long answer ended by itself");

    let expected = before.sum("weir_worker_generated_tokens_total", "") + (long_tokens + short_tokens) as f64;
    let after = until("the engine's count shows every token, and no more", || async {
        let scrape = Scrape::of(&installation).await;
        (scrape.sum("weir_worker_generated_tokens_total", "") == expected).then_some(scrape)
    })
    .await;
    let grew = |name: &str| after.sum(name, "") - before.sum(name, "");
    let (steps, generated) = (grew("weir_worker_steps_total"), grew("weir_worker_generated_tokens_total"));
    // One by one it would be a step for each token. Together, each step of the long answer carries the others along;
    // their prompts take some steps more.
    assert!(
        steps < generated * 0.8 && steps <= long_tokens as f64 + 60.0,
        "{steps} steps for {generated} tokens"
    );
    assert!(grew("weir_worker_rows_total") / steps > 1.2, "rows in a step");
    assert!(after.sum("weir_worker_step_rows_bucket", "le=\"+Inf\"") > 0.0);
}
