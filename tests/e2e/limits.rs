//! Limits of a tenant hold, release what they took, and say so as OpenAI does.

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::json;
use weir_tests::api::{Api, chat_body};
use weir_tests::installation::Installation;
use weir_tests::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn requests_tokens_and_concurrency_are_limited_and_given_back() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let now = chrono::Utc::now();
    let one_at_a_time = operator.create_tenant("one", json!({"concurrent_sequences": 1}), now).await;
    let few_requests = operator.create_tenant("few", json!({"requests_per_minute": 2}), now).await;
    let few_tokens = operator.create_tenant("short", json!({"tokens_per_minute": 200}), now).await;
    let brief = json!({"max_tokens": 4});

    // A stream holds the only seat until its reader goes away.
    let stream = one_at_a_time
        .api
        .stream("Tell a very long story.", json!({"max_tokens": 2000, "temperature": 0}))
        .await;
    let mut body = stream.bytes_stream();
    body.next().await.unwrap().unwrap();
    let (status, answer) = one_at_a_time.api.post("/chat/completions", &chat_body("Hi", brief.clone())).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("rate_limit_exceeded"))
    );
    drop(body);
    until("the seat is free again", || async {
        let (status, _) = one_at_a_time.api.post("/chat/completions", &chat_body("Hi", brief.clone())).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;

    for _ in 0..2 {
        few_requests.api.chat("Hi", brief.clone()).await;
    }
    let bytes = serde_json::to_vec(&chat_body("Hi", brief.clone())).unwrap();
    let refused = few_requests.api.send(Method::POST, "/chat/completions", bytes).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let header = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header("x-ratelimit-limit-requests").as_str(), header("x-ratelimit-remaining-requests").as_str()),
        ("2", "0")
    );
    let retry_after: u64 = header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");

    // What was reserved and not used comes back: small answers with a generous cap are not refused for the cap.
    few_tokens.api.chat("Hi", json!({"max_tokens": 20})).await;
    let (status, answer) =
        few_tokens.api.post("/chat/completions", &chat_body(&"word ".repeat(250), brief)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    assert_eq!(answer["error"]["type"], "rate_limit_error");
}
