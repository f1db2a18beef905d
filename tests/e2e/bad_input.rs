//! Bad input gets the right 4xx with OpenAI's error object, at once.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use weir_tests::api::{Api, chat_body};
use weir_tests::installation::{Installation, MODEL};

/// Generous for two busy cores; the point is that nothing here waits for a model or reads a body to its end.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn refused(api: &Api, what: &str, body: Vec<u8>, expected: (u16, &str)) -> Value {
    let started = Instant::now();
    // A server that refuses a large body may close while we still send; that too is a refusal, but say which.
    let response = api
        .send(Method::POST, "/chat/completions", body)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let status = response.status().as_u16();
    let answer: Value = response.json().await.unwrap();
    assert!(started.elapsed() < AT_ONCE, "{what} took {:?}", started.elapsed());
    assert_eq!(status, expected.0, "{what}: {answer}");
    let error = &answer["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}: {answer}");
    assert!(error.get("param").is_some() && error.get("code").is_some(), "{what}: {answer}");
    assert_eq!(error["type"], expected.1, "{what}: {answer}");
    answer
}

fn with(more: Value) -> Vec<u8> {
    serde_json::to_vec(&chat_body("Hi", more)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_request_is_refused_rightly_and_at_once() {
    let installation = Installation::start();
    let api = Api::first_tenant(&installation);
    let invalid = (400, "invalid_request_error");
    let many = vec![json!({"role": "user", "content": "x"}); 100_000];
    let mut bad_utf8 = with(json!({}));
    let at = bad_utf8.windows(2).position(|pair| pair == b"Hi").unwrap();
    bad_utf8[at] = 0xff;
    let nested = format!("{{\"model\": {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for (what, body, expected) in [
        ("malformed JSON", b"{\"model\": ".to_vec(), invalid),
        ("an empty body", Vec::new(), invalid),
        ("not an object", b"[1]".to_vec(), invalid),
        ("deep nesting", nested.into_bytes(), invalid),
        ("invalid UTF-8", bad_utf8, invalid),
        (
            "100,000 messages",
            serde_json::to_vec(&json!({"model": MODEL, "messages": many})).unwrap(),
            invalid,
        ),
        ("no messages", serde_json::to_vec(&json!({"model": MODEL, "messages": []})).unwrap(), invalid),
        ("negative max_tokens", with(json!({"max_tokens": -1})), invalid),
        ("zero max_tokens", with(json!({"max_tokens": 0})), invalid),
        ("fractional max_tokens", with(json!({"max_tokens": 1.5})), invalid),
        (
            "unknown role",
            serde_json::to_vec(&json!({"model": MODEL, "messages": [{"role": "wizard", "content": "x"}]}))
                .unwrap(),
            invalid,
        ),
        ("hot temperature", with(json!({"temperature": 2.1})), invalid),
        ("five stops", with(json!({"stop": ["a", "b", "c", "d", "e"]})), invalid),
        ("wrong type", with(json!({"messages": "Hi"})), invalid),
    ] {
        refused(&api, what, body, expected).await;
    }
    for parameter in [
        "tool_choice",
        "logit_bias",
        "n",
        "logprobs",
        "frequency_penalty",
        "response_format",
        "no_such_parameter",
    ] {
        let value = match parameter {
            "tool_choice" => json!("sometimes"),
            "logit_bias" => json!({"1000000": 1}),
            "n" => json!(129),
            "response_format" => json!({"type": "xml"}),
            _ => json!(3),
        };
        let answer = refused(&api, parameter, with(json!({parameter: value})), invalid).await;
        let error = &answer["error"];
        let named = error["param"] == parameter || error["message"].as_str().unwrap().contains(parameter);
        assert!(named, "{parameter} must be named: {answer}");
    }
    let answer = refused(&api, "huge max_tokens", with(json!({"max_tokens": 1_000_000})), invalid).await;
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    let answer = refused(&api, "beyond all numbers", with(json!({"max_tokens": 1e300})), invalid).await;
    assert!(answer["error"]["code"].is_null() || answer["error"]["code"].is_string());
    let answer =
        refused(&api, "wrong model", with(json!({"model": "gpt-4o"})), (404, "invalid_request_error")).await;
    assert_eq!(answer["error"]["code"], "model_not_found");
    a_body_of_50_megabytes_is_not_read(&api).await;
    // And none of this hurt anyone.
    api.chat("Hi", json!({"max_tokens": 2})).await;
}

async fn a_body_of_50_megabytes_is_not_read(api: &Api) {
    let started = Instant::now();
    let huge = with(json!({"user": "x".repeat(50 << 20)}));
    match api.send(Method::POST, "/chat/completions", huge).await {
        Ok(response) => {
            assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
            let answer: Value = response.json().await.unwrap();
            assert_eq!(answer["error"]["type"], "invalid_request_error");
        }
        // Refused by its length alone, the connection was closed under our hands.
        Err(error) => assert!(error.is_request() || error.is_body(), "{error}"),
    }
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_limit_is_exact_to_the_token() {
    let installation = Installation::start();
    let api = Api::first_tenant(&installation);
    let (_, models) = api.control(Method::GET, "/models", None).await;
    drop(models);
    let first = api.chat("Hi", json!({"max_tokens": 1})).await;
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let (status, answer) =
        api.post("/chat/completions", &chat_body("Hi", json!({"max_tokens": 10_000_000}))).await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().unwrap();
    let numbers: Vec<u64> =
        message.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    // The message names the limit; one token over it is refused, the limit itself is served.
    let limit = *numbers.iter().find(|&number| (1_000..1_000_000).contains(number)).unwrap();
    let over = json!({"max_tokens": limit - prompt + 1});
    refused(&api, "one token over", with(over), (400, "invalid_request_error")).await;
    let exactly = json!({"max_tokens": limit - prompt, "stop": ["e", "a", " "]});
    let (status, answer) = api.post("/chat/completions", &chat_body("Hi", exactly)).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_key_that_this_platform_issued_and_has_not_taken_back_is_good() {
    let installation = Installation::start();
    let good = Api::first_tenant(&installation);
    let operator = Api::operator(&installation);
    let tenant = operator.create_tenant("expiring", json!({}), chrono::Utc::now()).await;
    let soon = chrono::Utc::now() + chrono::Duration::seconds(1);
    let body = json!({"name": "brief", "scopes": ["inference"], "expires_at": soon});
    let (status, brief) =
        operator.control(Method::POST, &format!("/tenants/{}/keys", tenant.id), Some(body)).await;
    assert_eq!(status, 201, "{brief}");
    let (_, other) = operator.control(Method::GET, &format!("/tenants/{}", tenant.id), None).await;
    assert_eq!(other["id"], tenant.id.as_str());

    let token = installation.env["WEIR_API_KEY"].clone();
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&parts[1]).unwrap()).unwrap();
    claims["sub"] = json!(tenant.id);
    parts[1] = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap());
    let altered = parts.join(".");
    parts[0] = URL_SAFE_NO_PAD.encode(br#"{"alg":"none","typ":"JWT"}"#);
    parts[2].clear();
    let unsigned = parts.join(".");
    let foreign = foreign_token(&claims);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for (what, key) in [
        ("no key", None),
        ("an empty key", Some("")),
        ("nonsense", Some("sk-nonsense")),
        ("a key of a million characters", Some("x".repeat(8_000).as_str())),
        ("altered claims", Some(altered.as_str())),
        ("no signature", Some(unsigned.as_str())),
        ("another issuer's key", Some(foreign.as_str())),
        ("an expired key", brief["token"].as_str()),
    ] {
        let answer =
            refused(&good.with_key(key), what, with(json!({})), (401, "invalid_request_error")).await;
        assert_eq!(answer["error"]["code"], "invalid_api_key", "{what}");
        assert!(
            key.is_none_or(|key| key.len() < 9 || !answer.to_string().contains(key)),
            "{what}: the key is echoed"
        );
    }
    let only_usage = operator.create_key(&tenant.id, &["usage:read"], chrono::Utc::now()).await;
    let api = good.with_key(only_usage["token"].as_str());
    let (status, answer) = api.post("/chat/completions", &chat_body("Hi", json!({}))).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "too small a scope: {answer}");
}

/// Well-formed, well-signed, by a key that is not ours.
fn foreign_token(claims: &Value) -> String {
    use ed25519_dalek::{Signer, SigningKey};
    let header =
        URL_SAFE_NO_PAD.encode(br#"{"alg":"EdDSA","typ":"JWT","kid":"sig_00000000000000000000000001"}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).unwrap()));
    let signature = SigningKey::from_bytes(&[7; 32]).sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}
