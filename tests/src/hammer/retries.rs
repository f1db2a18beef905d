//! What consumes nothing, and what consumes once: rejected requests, repeats under an Idempotency-Key, and requests whose
//! replica was lost before its first token.

use std::process::Command;
use std::time::Duration;

use futures::future::join_all;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::clients::Usage;
use crate::api::{Api, Tenant, chat_body};
use crate::cluster::{Cluster, Part};
use crate::metrics::Scrape;
use crate::wait::until;

/// Of each kind of rejection.
const REJECTIONS: usize = 100;
/// Requests at once, of which some meet the replica that is lost.
const BATCH: u64 = 12;

/// What a tenant has left: requests, tokens.
type Left = (u64, u64);

fn left(response: &Response) -> Left {
    let number = |name: &str| response.headers()[name].to_str().unwrap().parse().unwrap();
    (number("x-ratelimit-remaining-requests"), number("x-ratelimit-remaining-tokens"))
}

/// More tokens than any limit here gives in a minute.
fn too_long() -> Value {
    chat_body(&"river ".repeat(7_000), json!({}))
}

/// Asks for more than can ever be had: refused, and told what there is.
async fn look(tenant: &Tenant) -> Left {
    let body = serde_json::to_vec(&too_long()).unwrap();
    let response = tenant.api.send(Method::POST, "/chat/completions", body).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    left(&response)
}

/// Chargeable requests of a tenant and their tokens, once the ledger has this many.
async fn charged(ledger: &PgPool, tenant: &Tenant, requests: usize) -> (usize, i64) {
    until(&format!("{requests} charges of {}", tenant.id), || async {
        let rows: Vec<(i64,)> = sqlx::query_as(
            "SELECT prompt_tokens + generated_tokens FROM ledger_charges WHERE tenant_id = $1 AND chargeable",
        )
        .bind(&tenant.id)
        .fetch_all(ledger)
        .await
        .unwrap();
        (rows.len() >= requests).then(|| (rows.len(), rows.iter().map(|row| row.0).sum()))
    })
    .await
}

/// Hundreds of requests that are refused for this or that.
pub async fn rejections(operator: &Api, ledger: &PgPool) -> Vec<String> {
    let limits = json!({"tokens_per_minute": 3_000, "requests_per_minute": 12});
    let tenant = operator.create_tenant("rejected", limits, chrono::Utc::now()).await;
    tenant.api.chat("Hi", json!({"max_tokens": 4})).await;
    let before = look(&tenant).await;
    let stranger = tenant.api.with_key(Some("no-key"));
    for _ in 0..REJECTIONS {
        for (api, body, expected) in [
            (&tenant.api, too_long(), 429),
            (&tenant.api, chat_body("Hi", json!({"temperature": 9})), 400),
            (&tenant.api, chat_body("Hi", json!({"model": "nothing"})), 404),
            (&stranger, chat_body("Hi", json!({})), 401),
        ] {
            let (status, answer) = api.post("/chat/completions", &body).await;
            assert_eq!(status.as_u16(), expected, "{answer}");
        }
    }
    let after = look(&tenant).await;
    let (requests, _) = charged(ledger, &tenant, 1).await;
    eprintln!(
        "hammer: {} rejected requests took nothing: {} requests and {} tokens before, {} and {} after",
        4 * REJECTIONS,
        before.0,
        before.1,
        after.0,
        after.1
    );
    let mut wrong = Vec::new();
    if after.0 < before.0 || after.1 < before.1 {
        wrong.push(format!("rejected requests took from {before:?}; left is {after:?}"));
    }
    if requests != 1 {
        wrong.push(format!("of one answered and many rejected requests {requests} are charged"));
    }
    wrong
}

/// Repeats under one key, of a request that runs and of one that is over.
pub async fn repeats(operator: &Api, ledger: &PgPool) -> Vec<String> {
    let limits = json!({"tokens_per_minute": 6_000, "requests_per_minute": 20});
    let tenant = operator.create_tenant("repeating", limits, chrono::Utc::now()).await;
    let body = chat_body("Tell a story.", json!({"max_tokens": 200, "temperature": 1.0}));
    let (over, running) = (0..5, 0..5);
    let mut usages = Vec::new();
    for _ in over {
        usages.push(usage(tenant.api.chat_once("over", &body).await).await);
    }
    let joined =
        join_all(running.map(|_| async { usage(tenant.api.chat_once("running", &body).await).await }));
    usages.extend(joined.await);
    consumed_once(ledger, &tenant, &[usages[0], usages[5]], (20, 6_000), "ten repeats of two requests").await
}

/// A batch of requests while one of two replicas hangs, and is then lost.
pub async fn lost_replica(cluster: &Cluster, operator: &Api, ledger: &PgPool) -> Vec<String> {
    let limits = json!({"tokens_per_minute": 6_000, "requests_per_minute": 20});
    let tenant = operator.create_tenant("failing-over", limits, chrono::Utc::now()).await;
    let other = operator.create_tenant("warming-up", json!({}), chrono::Utc::now()).await;
    cluster.run(Part::SecondWorker);
    let second = cluster.metrics_url(Part::SecondWorker);
    until("the second worker gets its share", || async {
        reqwest::get(&second).await.ok()?;
        join_all((0..BATCH).map(|_| other.api.chat("Hi", json!({"max_tokens": 16})))).await;
        let generated = Scrape::at(&second).await.find("weir_worker_generated_tokens_total", "")?;
        (generated > 0.0).then_some(())
    })
    .await;
    freeze(cluster.pid(Part::SecondWorker));
    let asking = join_all((0..BATCH).map(|_| async {
        let body = serde_json::to_vec(&chat_body("Hi", json!({"max_tokens": 16}))).unwrap();
        usage(tenant.api.send(Method::POST, "/chat/completions", body).await.unwrap()).await
    }));
    let losing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.kill(Part::SecondWorker);
    };
    let (usages, ()) = tokio::join!(asking, losing);
    let failovers =
        Scrape::at(&cluster.metrics_url(Part::Gateway)).await.sum("weir_gateway_failovers_total", "");
    let what = format!("{BATCH} requests, {failovers} of them sent to a second replica");
    let mut wrong = consumed_once(ledger, &tenant, &usages, (20, 6_000), &what).await;
    if failovers == 0.0 {
        wrong.push("no request met the replica that was lost".to_owned());
    }
    wrong
}

/// Stops a process where it stands, as a machine that hangs does.
fn freeze(pid: u32) {
    assert!(Command::new("kill").args(["-s", "STOP", &pid.to_string()]).status().unwrap().success());
}

async fn usage(response: Response) -> Usage {
    let status = response.status();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{answer}");
    let count = |name: &str| answer["usage"][name].as_i64().unwrap();
    Usage { prompt: count("prompt_tokens"), generated: count("completion_tokens") }
}

/// No more than these was taken from the limits, and just these are charged.
async fn consumed_once(
    ledger: &PgPool,
    tenant: &Tenant,
    usages: &[Usage],
    limits: Left,
    what: &str,
) -> Vec<String> {
    let left = look(tenant).await;
    let used: i64 = usages.iter().map(|usage| usage.prompt + usage.generated).sum();
    let (requests, tokens) = charged(ledger, tenant, usages.len()).await;
    eprintln!("hammer: {what} took {requests} requests and {tokens} tokens");
    let mut wrong = Vec::new();
    if (requests, tokens) != (usages.len(), used) {
        wrong.push(format!("{what}: charged {requests} requests and {tokens} tokens, {used} were told"));
    }
    let expected = (limits.0 - usages.len() as u64, limits.1 - used.unsigned_abs());
    if left.0 < expected.0 || left.1 < expected.1 {
        wrong.push(format!("{what}: {left:?} are left of {limits:?}, less than {expected:?}"));
    }
    wrong
}
