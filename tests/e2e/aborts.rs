//! A client may go away at any moment: its pages are free at once, one right record tells what was done, and every
//! permit comes back.

use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use reqwest::StatusCode;
use serde_json::json;
use weir_tests::api::{Api, chat_body};
use weir_tests::installation::Installation;
use weir_tests::ledger::{Charge, Execution, Ledger};
use weir_tests::metrics::Scrape;
use weir_tests::wait::until;

const ABORTS: usize = 1_000;
const AT_ONCE: usize = 32;

/// Leaves at a stage: the number decides which.
async fn abort(api: Api, number: usize) {
    let long = "A story about rivers. ".repeat(1 + 20 * (number % 5));
    let body = json!({"max_tokens": 400, "temperature": 0, "stream": number.is_multiple_of(2)});
    let request = serde_json::to_vec(&chat_body(&long, body)).unwrap();
    // Before dispatch and while waiting: the answer's head has not come. Later: after some tokens.
    let patience = Duration::from_micros([1, 300, 2_000, 10_000, 40_000, 150_000][number % 6]);
    let response = loop {
        let send = api.send(reqwest::Method::POST, "/chat/completions", request.clone());
        match tokio::time::timeout(patience, send).await {
            // The permits of those who left a moment ago are not back yet.
            Ok(Ok(response)) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(Ok(response)) => break response,
            Ok(Err(_)) | Err(_) => return,
        }
    };
    assert_eq!(response.status(), StatusCode::OK);
    let mut stream = response.bytes_stream();
    for _ in 0..number % 7 {
        stream.next().await;
    }
}

/// What must hold of every record pair, whatever happened.
fn check(charge: &Charge, executions: &[Execution]) {
    let [execution] = executions else { panic!("{} executions of {charge:?}", executions.len()) };
    assert_eq!(charge.generated_tokens, execution.generated_tokens, "{charge:?} {execution:?}");
    assert_eq!(charge.cached_prompt_tokens, execution.cached_tokens, "{charge:?} {execution:?}");
    if charge.generated_tokens > 0 {
        assert_eq!(charge.prompt_tokens, execution.prompt_tokens, "{charge:?} {execution:?}");
    } else {
        assert_eq!(
            charge.prompt_tokens,
            execution.cached_tokens + execution.computed_tokens,
            "{charge:?} {execution:?}"
        );
    }
    assert_eq!(charge.amount, charge.expected_amount(), "{charge:?}");
    assert_eq!(charge.amount.is_zero(), charge.prompt_tokens + charge.generated_tokens == 0, "{charge:?}");
}

async fn everything_is_back(installation: &Installation) -> Option<()> {
    let scrape = Scrape::of(installation).await;
    let idle = scrape.sum("weir_worker_running", "") == 0.0
        && scrape.sum("weir_worker_waiting_interactive", "") == 0.0
        && scrape.sum("weir_worker_kv_pages_referenced", "") == 0.0
        && scrape.sum("weir_gateway_inflight", "") == 0.0;
    idle.then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_thousand_aborts_nothing_is_held_and_every_record_is_right() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let tenant =
        operator.create_tenant("restless", json!({"concurrent_sequences": 64}), chrono::Utc::now()).await;
    let scrape = Scrape::of(&installation).await;
    let pages = |scrape: &Scrape| {
        ["free", "cached", "referenced"]
            .map(|state| scrape.sum(&format!("weir_worker_kv_pages_{state}"), ""))
            .iter()
            .sum::<f64>()
    };
    let total = pages(&scrape);
    stream::iter(0..ABORTS).for_each_concurrent(AT_ONCE, |number| abort(tenant.api.clone(), number)).await;
    until("pages, seats and permits are back", || everything_is_back(&installation)).await;
    assert_eq!(pages(&Scrape::of(&installation).await), total, "free + cached = total");

    let ledger = Ledger::of(&installation).await;
    // One that never reached a worker has no execution; it is recorded with nothing, if it was admitted at all.
    let (charges, executions) = until("the records have arrived", || async {
        let (charges, executions) = (ledger.charges(&tenant.id).await, ledger.executions(&tenant.id).await);
        let delivered = Scrape::of(&installation).await.sum("weir_gateway_record_log_lag_seconds", "") == 0.0;
        let complete = executions.iter().all(|e| charges.iter().any(|c| c.request_id == e.request_id));
        (delivered && complete && !charges.is_empty()).then_some((charges, executions))
    })
    .await;
    assert!(charges.len() > ABORTS / 3, "only {} requests got as far as a record", charges.len());
    let mut ids: Vec<&str> = charges.iter().map(|charge| charge.request_id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), charges.len(), "one record each");
    for charge in &charges {
        let own: Vec<Execution> =
            executions.iter().filter(|e| e.request_id == charge.request_id).cloned().collect();
        if own.is_empty() {
            assert_eq!(
                (charge.prompt_tokens, charge.generated_tokens),
                (0, 0),
                "never dispatched: {charge:?}"
            );
        } else {
            check(charge, &own);
        }
    }
    assert!(charges.iter().any(|charge| charge.finish_reason == "cancelled"));
    assert!(
        charges.iter().any(|c| c.generated_tokens > 0) && charges.iter().any(|c| c.generated_tokens == 0)
    );

    // Every permit is back: the whole concurrency can be used at once.
    let body = chat_body("Hi", json!({"max_tokens": 2}));
    let answers =
        futures::future::join_all((0..64).map(|_| tenant.api.post("/chat/completions", &body))).await;
    assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK), "{answers:?}");
}
