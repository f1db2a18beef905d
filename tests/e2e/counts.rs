//! Four counts agree exactly: what the clients were told, the ledger, the workers' execution records, and an outside
//! count by the reference tokenizer and the reference model. The clients are OpenAI's own.

use std::collections::HashMap;

use reqwest::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use weir_tests::api::Api;
use weir_tests::conformance::run_python;
use weir_tests::installation::Installation;
use weir_tests::ledger::Ledger;

#[tokio::test(flavor = "multi_thread")]
async fn clients_ledger_workers_and_reference_count_the_same() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let tenant = operator.create_tenant("counts", json!({}), chrono::Utc::now()).await;
    let key = operator.create_key(&tenant.id, &["inference"], chrono::Utc::now()).await;
    let token = key["token"].as_str().unwrap().to_owned();
    let answers = tokio::task::block_in_place(|| run_python("openai_client.py", &installation, &token));
    assert!(answers.len() >= 40, "only {} answers", answers.len());
    let stops = answers.iter().filter(|answer| answer["expected_reason"] == "stop").count();
    assert!(stops >= 8, "only {stops} answers that end by themselves");

    let ledger = Ledger::of(&installation).await;
    let (charges, executions) = ledger.settled(&tenant.id, answers.len(), answers.len()).await;
    let charges: HashMap<_, _> =
        charges.into_iter().map(|charge| (charge.request_id.clone(), charge)).collect();
    let executions: HashMap<_, _> = executions.into_iter().map(|e| (e.request_id.clone(), e)).collect();
    let mut total = Decimal::ZERO;
    for answer in &answers {
        let (_, suffix) = answer["id"].as_str().unwrap().split_once('-').unwrap();
        let request = if suffix.starts_with("req_") { suffix.to_owned() } else { format!("req_{suffix}") };
        let (charge, execution) = (&charges[&request], &executions[&request]);
        let told = |name: &str| answer[name].as_i64().unwrap();
        let four = |told, charged, executed, outside| {
            assert_eq!([charged, executed, outside], [told; 3], "{answer}")
        };
        four(
            told("prompt_tokens"),
            charge.prompt_tokens,
            execution.prompt_tokens,
            told("expected_prompt_tokens"),
        );
        four(
            told("completion_tokens"),
            charge.generated_tokens,
            execution.generated_tokens,
            told("expected_tokens"),
        );
        assert_eq!([charge.cached_prompt_tokens, execution.cached_tokens], [told("cached_tokens"); 2]);
        assert_eq!(execution.cached_tokens + execution.computed_tokens, execution.prompt_tokens);
        assert_eq!(charge.finish_reason, answer["expected_reason"].as_str().unwrap(), "{answer}");
        assert_eq!(charge.finish_reason, answer["finish_reason"].as_str().unwrap(), "{answer}");
        if let Some(text) = answer["text"].as_str() {
            assert_eq!(answer["told_text"].as_str().unwrap(), text);
        }
        assert_eq!(charge.amount, charge.expected_amount(), "price × tokens, to the last digit");
        assert!(charge.amount > Decimal::ZERO);
        total += charge.amount;
    }
    the_usage_and_costs_endpoints_say_the_same(&operator, &tenant.api, &answers, total).await;
}

async fn the_usage_and_costs_endpoints_say_the_same(
    operator: &Api,
    tenant: &Api,
    answers: &[Value],
    total: Decimal,
) {
    let told = |name: &str| answers.iter().map(|answer| answer[name].as_i64().unwrap()).sum::<i64>();
    let start = chrono::Utc::now().timestamp() - 86_400;
    for api in [tenant, operator] {
        let (status, usage) =
            api.control(Method::GET, &format!("/usage?start_time={start}&bucket_width=1d"), None).await;
        assert_eq!(status, 200, "{usage}");
        let sum = |name: &str| -> i64 {
            let buckets = usage["data"].as_array().unwrap();
            buckets
                .iter()
                .flat_map(|bucket| bucket["results"].as_array().unwrap())
                .map(|r| r[name].as_i64().unwrap())
                .sum()
        };
        let counts = [
            sum("input_tokens"),
            sum("input_cached_tokens"),
            sum("output_tokens"),
            sum("num_model_requests"),
        ];
        let expected = [
            told("prompt_tokens"),
            told("cached_tokens"),
            told("completion_tokens"),
            i64::try_from(answers.len()).unwrap(),
        ];
        if std::ptr::eq(api, tenant) {
            assert_eq!(counts, expected);
        } else {
            // The operator also sees the first answer that `weir up` itself asked for.
            assert!(counts.iter().zip(expected).all(|(all, own)| *all >= own), "{counts:?} {expected:?}");
        }
    }
    let (status, costs) =
        tenant.control(Method::GET, &format!("/costs?start_time={start}&bucket_width=1d"), None).await;
    assert_eq!(status, 200, "{costs}");
    let amounts =
        costs["data"].as_array().unwrap().iter().flat_map(|bucket| bucket["results"].as_array().unwrap());
    let sum: Decimal = amounts.map(|result| exact(&result["amount"]["value"])).sum();
    assert_eq!(sum, total);
}

/// A JSON number or string, digit by digit.
fn exact(value: &Value) -> Decimal {
    // serde_json prints small numbers as 4e-6.
    let text = value.to_string();
    let text = text.trim_matches('"');
    text.parse().or_else(|_| Decimal::from_scientific(text)).unwrap()
}
