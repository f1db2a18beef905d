use axum::body::to_bytes;
use serde_json::{Value, json};

use super::*;
use crate::admission::{Excess, LimitKind, LimitScope, LimitState, LimitStates, Refusal, RefusalReason};
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

async fn check(error: GatewayError, status: u16, expected: [Option<&str>; 3], retry_after: Option<&str>) {
    let name = format!("{error:?}");
    let rate_limits = matches!(error, GatewayError::Admission(_));
    let expected = (status, json!(expected), retry_after.map(str::to_owned), rate_limits);
    assert_eq!(rendered(error).await, expected, "{name}");
}

const INVALID: Option<&str> = Some("invalid_request_error");

/// The table of DESIGN.md section 6, and what belongs beside it: whose fault it is.
#[tokio::test]
async fn the_callers_faults_look_as_the_table_says() {
    let invalid = async |error, status, code, param| check(error, status, [INVALID, code, param], None).await;
    for auth in [AuthError::Missing, AuthError::Malformed, AuthError::Refused("expired")] {
        invalid(GatewayError::Auth(auth), 401, Some("invalid_api_key"), None).await;
    }
    invalid(GatewayError::Auth(AuthError::Scope), 403, Some("insufficient_permissions"), None).await;
    let unknown = GatewayError::UnknownModel { model: "x".into() };
    invalid(unknown, 404, Some("model_not_found"), Some("model")).await;
    let long =
        GatewayError::ContextLength { limit_tokens: 8, prompt_tokens: 8, output_tokens: 1, param: "prompt" };
    invalid(long, 400, Some("context_length_exceeded"), Some("prompt")).await;
    let parameter = ParameterError::invalid("stop", "Invalid 'stop': no.".into());
    invalid(GatewayError::Parameter(parameter), 400, Some("invalid_value"), Some("stop")).await;
    let conflict = |error| GatewayError::Idempotency(error);
    let key = Some("Idempotency-Key");
    for (error, code) in [
        (IdempotencyError::Reused, "idempotency_key_reused"),
        (IdempotencyError::Spent, "idempotency_key_spent"),
        (IdempotencyError::TooLongToJoin, "idempotency_key_in_use"),
    ] {
        let retries = conflict(error).into_response().headers().get("x-should-retry").is_none();
        assert_eq!(retries, error == IdempotencyError::TooLongToJoin);
        invalid(conflict(error), 409, Some(code), key).await;
    }
    invalid(GatewayError::BodyTooLarge { limit_bytes: 5 }, 413, Some("request_too_large"), None).await;
}

/// The same table: limits, a full platform and faults of ours.
#[tokio::test]
async fn limits_and_faults_look_as_the_table_says() {
    let tokens = LimitState { limit: 10, remaining: 0, reset: Duration::from_secs(60) };
    let excess = Excess { limit: 3, requested: 1, available: 0, wait: Some(Duration::from_millis(1500)) };
    let refusal = Refusal {
        reason: RefusalReason::Limit { scope: LimitScope::Tenant, kind: LimitKind::Requests, excess },
        model: "m".into(),
        limits: LimitStates { requests: None, tokens: Some(tokens) },
    };
    let rate_limited = [Some("rate_limit_error"), Some("rate_limit_exceeded"), None];
    check(GatewayError::Admission(Box::new(refusal)), 429, rate_limited, Some("2")).await;
    let quota = [Some("insufficient_quota"), Some("insufficient_quota"), None];
    check(GatewayError::BudgetSpent, 429, quota, None).await;
    let retry_after = Duration::from_secs(3);
    let full = [Some("rate_limit_error"), Some("capacity_exhausted"), None];
    check(GatewayError::Capacity { retry_after, load: None }, 429, full, Some("3")).await;
    check(IdempotencyError::TooManyRunning.into(), 429, full, Some("1")).await;
    let warming = [Some("service_unavailable"), Some("model_warming"), None];
    check(GatewayError::ModelWarming { model: "x".into(), retry_after }, 503, warming, Some("3")).await;
    let failed = [Some("server_error"), Some("engine_failed"), None];
    check(GatewayError::EngineFailed, 500, failed, None).await;
}

#[test]
fn a_refusal_names_the_limit_and_when_to_come_again() {
    let text = |scope, kind, wait| {
        let excess = Excess { limit: 100, requested: 40, available: 30, wait };
        let reason = RefusalReason::Limit { scope, kind, excess };
        let refusal = Refusal { reason, model: "m".into(), limits: LimitStates::default() };
        message(&GatewayError::Admission(Box::new(refusal)))
    };
    assert_eq!(
        text(LimitScope::Tenant, LimitKind::Tokens, Some(Duration::from_millis(6_000))),
        "Rate limit reached for this tenant on tokens per min (TPM): Limit 100, Used 70, Requested 40. Please try \
         again in 6s."
    );
    assert_eq!(
        text(LimitScope::KeyOnModel, LimitKind::InputTokens, None),
        "Request too large for `m` with this key on input tokens per min: Limit 100, Requested 40. The prompt, \
         max_tokens or n must be reduced in order to run successfully."
    );
    let other = text(LimitScope::TenantOnModel, LimitKind::Concurrency, Some(Duration::from_secs(1)));
    assert!(other.contains("`m` in this tenant on concurrent sequences"), "{other}");
}

#[test]
fn what_is_echoed_is_short_and_printable() {
    let model = format!("a\u{1}\n{}", "b".repeat(1000));
    let text = message(&GatewayError::UnknownModel { model });
    assert!(text.len() < 250 && !text.contains('\n') && text.contains("`ab"), "{text}");
}
