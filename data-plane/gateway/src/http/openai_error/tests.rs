use axum::body::to_bytes;
use serde_json::{Value, json};

use super::*;
use crate::admission::{LimitState, LimitStates, Refusal};
use crate::openai::ParameterError;

async fn rendered(error: GatewayError) -> (u16, Value, Option<String>, bool) {
    let response = error.into_response();
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, retry_after) = (response.status().as_u16(), header("retry-after"));
    let rate_limits = header("x-ratelimit-limit-tokens").is_some();
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    let body: Value =
        serde_json::from_slice(&to_bytes(response.into_body(), 1 << 16).await.unwrap()).unwrap();
    assert_eq!(body.as_object().unwrap().len(), 1);
    let error = &body["error"];
    assert_eq!(error.as_object().unwrap().len(), 4);
    assert!(error["message"].as_str().unwrap().len() > 10);
    (status, json!([error["type"], error["code"], error["param"]]), retry_after, rate_limits)
}

/// The table of DESIGN.md section 6, and what belongs beside it.
#[tokio::test]
async fn every_outcome_looks_as_the_table_says() {
    const INVALID: &str = "invalid_request_error";
    let seconds = |s: &str| Some(s.to_owned());
    let refusal = |reason| {
        let tokens = LimitState { limit: 10, remaining: 0, reset: Duration::from_secs(60) };
        let limits = LimitStates { requests: None, tokens: Some(tokens) };
        GatewayError::Admission(Box::new(Refusal {
            reason,
            retry_after: Some(Duration::from_millis(1500)),
            limits,
        }))
    };
    let unauthenticated = json!([INVALID, "invalid_api_key", null]);
    let wait = Duration::from_secs(3);
    let table = [
        (GatewayError::Auth(AuthError::Missing), 401, unauthenticated.clone(), None, false),
        (GatewayError::Auth(AuthError::Malformed), 401, unauthenticated.clone(), None, false),
        (GatewayError::Auth(AuthError::Refused("expired")), 401, unauthenticated, None, false),
        (
            GatewayError::Auth(AuthError::Scope),
            403,
            json!([INVALID, "insufficient_permissions", null]),
            None,
            false,
        ),
        (
            GatewayError::UnknownModel { model: "x".into() },
            404,
            json!([INVALID, "model_not_found", "model"]),
            None,
            false,
        ),
        (
            GatewayError::ContextLength {
                limit_tokens: 8,
                prompt_tokens: 8,
                output_tokens: 1,
                param: "prompt",
            },
            400,
            json!([INVALID, "context_length_exceeded", "prompt"]),
            None,
            false,
        ),
        (
            refusal(RefusalReason::Requests { limit: 3 }),
            429,
            json!(["rate_limit_error", "rate_limit_exceeded", null]),
            seconds("2"),
            true,
        ),
        (
            GatewayError::BudgetSpent,
            429,
            json!(["insufficient_quota", "insufficient_quota", null]),
            None,
            false,
        ),
        (
            GatewayError::Capacity { retry_after: wait },
            429,
            json!(["rate_limit_error", "capacity_exhausted", null]),
            seconds("3"),
            false,
        ),
        (
            GatewayError::ModelWarming { model: "x".into(), retry_after: wait },
            503,
            json!(["service_unavailable", "model_warming", null]),
            seconds("3"),
            false,
        ),
        (
            GatewayError::Parameter(ParameterError::invalid("stop", "Invalid 'stop': no.".into())),
            400,
            json!([INVALID, "invalid_value", "stop"]),
            None,
            false,
        ),
        (
            GatewayError::BodyTooLarge { limit_bytes: 5 },
            413,
            json!([INVALID, "request_too_large", null]),
            None,
            false,
        ),
        (GatewayError::EngineFailed, 500, json!(["server_error", "engine_failed", null]), None, false),
    ];
    for (error, status, kind_code_param, retry_after, rate_limits) in table {
        let name = format!("{error:?}");
        assert_eq!(rendered(error).await, (status, kind_code_param, retry_after, rate_limits), "{name}");
    }
}

#[test]
fn what_is_echoed_is_short_and_printable() {
    let model = format!("a\u{1}\n{}", "b".repeat(1000));
    let text = message(&GatewayError::UnknownModel { model });
    assert!(text.len() < 250 && !text.contains('\n') && text.contains("`ab"), "{text}");
}
