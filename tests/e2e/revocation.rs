//! A revoked key is refused within a second; what runs under it finishes and is charged.

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::json;
use weir_tests::api::{Api, chat_body};
use weir_tests::installation::Installation;
use weir_tests::ledger::Ledger;

#[tokio::test(flavor = "multi_thread")]
async fn new_requests_are_refused_and_running_ones_finish_and_are_charged() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let tenant = operator.create_tenant("revoked", json!({}), chrono::Utc::now()).await;
    let stream =
        tenant.api.stream("Tell a very long story.", json!({"max_tokens": 300, "temperature": 0})).await;
    let mut body = stream.bytes_stream();
    body.next().await.unwrap().unwrap();

    let path = format!("/tenants/{}/keys/{}", tenant.id, tenant.key_id);
    let (status, _) = operator.control(Method::DELETE, &path, None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let revoked = Instant::now();
    loop {
        let (status, answer) =
            tenant.api.post("/chat/completions", &chat_body("Hi", json!({"max_tokens": 1}))).await;
        if status == StatusCode::UNAUTHORIZED {
            assert_eq!(answer["error"]["code"], "invalid_api_key");
            break;
        }
        assert!(revoked.elapsed() < Duration::from_secs(1), "still served a second after the revocation");
    }

    let mut text = String::new();
    while let Some(chunk) = body.next().await {
        text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let ledger = Ledger::of(&installation).await;
    let charges = weir_tests::wait::until("the stream is charged", || async {
        let charges = ledger.charges(&tenant.id).await;
        charges.iter().any(|charge| charge.generated_tokens > 1).then_some(charges)
    })
    .await;
    assert!(charges.iter().all(|charge| charge.amount == charge.expected_amount()));
    // The control plane refuses the key as well.
    let (status, _) = tenant.api.control(Method::GET, "/usage?start_time=0", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
