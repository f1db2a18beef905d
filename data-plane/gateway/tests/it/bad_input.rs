//! Whatever is sent: the right 4xx with OpenAI's error object, at once, and nothing reaches a worker.

use chrono::TimeDelta;
use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::client::chat_body;
use crate::support::{Harness, prompt_tokens};
use crate::testing::{CONTEXT_LIMIT, Issuer, MODEL, TokenClaims, now};

const CHAT: &str = "/v1/chat/completions";

async fn error_of(harness: &Harness, body: Vec<u8>) -> (u16, String, Option<String>, Option<String>) {
    harness.client.send(Method::POST, CHAT, Some(&harness.token), body).await.error()
}

fn error(
    status: u16,
    code: Option<&str>,
    param: Option<&str>,
) -> (u16, String, Option<String>, Option<String>) {
    (status, "invalid_request_error".into(), code.map(Into::into), param.map(Into::into))
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies() {
    let harness = Harness::new(1).await;
    let check = async |body: &[u8], expected| {
        assert_eq!(error_of(&harness, body.to_vec()).await, expected);
    };
    check(b"{\"model\": \"m\", ", error(400, None, None)).await;
    check(b"", error(400, None, None)).await;
    check(b"{\"model\": \"\xff\xfe\"}", error(400, None, None)).await;
    check(&vec![b'['; 1 << 20], error(400, None, None)).await;
    let many: Vec<Value> = (0..100_000).map(|_| json!({"role": "user", "content": "x"})).collect();
    let many = serde_json::to_vec(&chat_body(json!({"messages": many}))).unwrap();
    check(&many, error(400, Some("array_above_max_length"), Some("messages"))).await;
    let stops: Vec<String> = (0..1_000_000).map(|_| "a".to_owned()).collect();
    let stops = serde_json::to_vec(&chat_body(json!({"stop": stops}))).unwrap();
    check(&stops, error(400, Some("array_above_max_length"), Some("stop"))).await;
    check(&vec![b' '; (4 << 20) + 1], error(413, Some("request_too_large"), None)).await;
    assert!(harness.workers[0].requests().is_empty());
    assert!(harness.ledger.charges().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters() {
    let harness = Harness::new(1).await;
    let check = async |change: Value, code: &str, param: &str| {
        let body = serde_json::to_vec(&chat_body(change.clone())).unwrap();
        assert_eq!(error_of(&harness, body).await, error(400, Some(code), Some(param)), "{change}");
    };
    check(json!({"max_tokens": -1}), "integer_below_min_value", "max_tokens").await;
    check(json!({"max_tokens": u64::MAX}), "integer_above_max_value", "max_tokens").await;
    check(json!({"max_tokens": 4_000_000_000u64}), "context_length_exceeded", "messages").await;
    check(json!({"temperature": 9}), "decimal_above_max_value", "temperature").await;
    check(json!({"messages": [{"role": "wizard", "content": "x"}]}), "invalid_value", "messages[0].role")
        .await;
    check(json!({"nonsense": 1}), "unknown_parameter", "nonsense").await;
    check(json!({"n": 129}), "integer_above_max_value", "n").await;
    check(json!({"logit_bias": {"100000": 1}}), "invalid_value", "logit_bias").await;
    check(json!({"tools": [{}]}), "missing_required_parameter", "tools[0].type").await;
    let body = serde_json::to_vec(&chat_body(json!({"model": "none"}))).unwrap();
    assert_eq!(error_of(&harness, body).await, error(404, Some("model_not_found"), Some("model")));
    assert!(harness.workers[0].requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_is_exact_to_the_token() {
    let harness = Harness::new(1).await;
    let room = u64::from(CONTEXT_LIMIT) - prompt_tokens("");
    let content = "x".repeat(usize::try_from(room).unwrap() - 1);
    let messages = json!([{"role": "user", "content": content}]);
    let fits = harness.client.chat(&harness.token, json!({"messages": messages, "max_tokens": 1})).await;
    assert_eq!(fits.status, 200);
    let over = harness.client.chat(&harness.token, json!({"messages": messages, "max_tokens": 2})).await;
    assert_eq!(over.error(), error(400, Some("context_length_exceeded"), Some("messages")));
    let message = over.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("maximum context length is 1024 tokens"), "{message}");
    assert!(message.contains("1025 tokens (1023 in the messages, 2 in the completion)"), "{message}");
    // What a replica can hold is a limit too.
    harness.workers[0].report(|load| load.max_sequence_tokens = 512);
    let client = &harness.client;
    let mut status = 200;
    for _ in 0..1000 {
        status =
            client.chat(&harness.token, json!({"messages": messages, "max_tokens": 1})).await.status.as_u16();
        if status == 400 {
            break;
        }
    }
    assert_eq!(status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys() {
    let harness = Harness::new(1).await;
    let body = serde_json::to_vec(&chat_body(json!({}))).unwrap();
    let check = async |token: Option<&str>, status: u16, code: &str| {
        let answer = harness.client.send(Method::POST, CHAT, token, body.clone()).await;
        assert_eq!(answer.error(), error(status, Some(code), None));
        assert!(token.is_none_or(|token| !answer.json().to_string().contains(token)));
    };
    check(None, 401, "invalid_api_key").await;
    check(Some("sk-nonsense"), 401, "invalid_api_key").await;
    let with = |change: fn(&mut TokenClaims)| {
        let mut claims = TokenClaims::default();
        change(&mut claims);
        claims
    };
    let expired = harness.issuer.token(&with(|claims| claims.exp = now() - TimeDelta::seconds(1)));
    check(Some(&expired), 401, "invalid_api_key").await;
    let foreign = Issuer::new(7).token(&TokenClaims::default());
    check(Some(&foreign), 401, "invalid_api_key").await;
    let narrow = harness.issuer.token(&with(|claims| claims.scope = "usage:read".into()));
    check(Some(&narrow), 403, "insufficient_permissions").await;
    assert!(harness.workers[0].requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_and_methods() {
    let harness = Harness::new(0).await;
    let unknown = harness.client.get("/v1/nothing", Some(&harness.token)).await;
    assert_eq!(unknown.error(), error(404, None, None));
    let method = harness.client.get(CHAT, Some(&harness.token)).await;
    assert_eq!(method.error(), error(405, Some("method_not_supported"), None));
    assert_eq!(harness.client.get("/readyz", None).await.status, 503);
}

/// Fifty megabytes, announced or not: refused while they are still on their way, and the client that sends all of
/// them first gets to read the refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_is_refused_without_being_kept() {
    let harness = Harness::new(1).await;
    let token = &harness.token;
    for framing in ["content-length: 52428800", "transfer-encoding: chunked"] {
        let mut stream = TcpStream::connect(harness.client.address).await.unwrap();
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut chunk = vec![b' '; 1 << 20];
        if framing.starts_with("transfer") {
            chunk = [format!("{:x}\r\n", 1 << 20).into_bytes(), chunk, b"\r\n".to_vec()].concat();
        }
        for _ in 0..50 {
            stream.write_all(&chunk).await.unwrap();
        }
        if framing.starts_with("transfer") {
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("request_too_large") && !answer.contains(MODEL), "{answer}");
    }
}
