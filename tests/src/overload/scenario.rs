//! The whole run: capacity is measured, then each policy meets five times as much.

use std::time::{Duration, Instant};

use chrono::Utc;
use reqwest::Method;
use serde_json::{Value, json};

use super::judge::{Summary, sum_up, wrong};
use super::load::{Callers, Kind, Outcome, closed, one, send};
use crate::api::Api;
use crate::cluster::published::smollm2;
use crate::cluster::{Cluster, Part};
use crate::installation::MODEL;
use crate::memory;

/// The deployment's target for the first token.
pub const TARGET: Duration = Duration::from_secs(1);
/// Requests that may wait at a replica, under every policy that lets them wait.
pub const MAX_DEPTH: u64 = 12;
/// What `shrink` cuts answers to.
pub const CUT_TOKENS: u64 = 20;
/// The model that `overflow` goes to.
pub const SMALLER: &str = "smaller";

/// A small GPU's worth of time: eight sequences at some ten milliseconds a token.
const SIM: &str = "step_us = 10000.0\ntoken_us = 20.0";
const SEATS: &str = "max_seats = 8";
/// Clients that keep the seats full and a few requests waiting.
const CLIENTS_AT_CAPACITY: u64 = 12;
const TIMES_CAPACITY: f64 = 5.0;
/// Until who came before the load was at its height is gone.
const RAMP: Duration = Duration::from_secs(5);
/// By then a request is served as if nothing had been.
const RECOVERY: Duration = Duration::from_secs(5);
/// How much a process may grow while the load lasts.
const GROWTH_MAX_BYTES: u64 = 32 << 20;

/// Runs everything, prints a line for each policy, and gives what was wrong.
pub async fn run(lasts: Duration) -> Vec<String> {
    let cluster = Cluster::start_simulated(SIM, SEATS).await;
    let operator = cluster.operator();
    add_smaller_model(&cluster).await;
    let callers = Callers {
        lenient: operator.create_tenant("lenient", json!({}), Utc::now()).await.api,
        firm: operator.create_tenant("firm", json!({}), Utc::now()).await.api,
    };
    agree(&operator).await;
    let at_capacity = measure_capacity(&cluster, &operator, &callers).await;
    let requests_per_s = at_capacity.admitted as f64 / CAPACITY_LASTS.as_secs_f64();
    eprintln!("overload: at capacity {requests_per_s:.1} requests/s, {}", line(&at_capacity));
    let mut all = Vec::new();
    for (policy, overload) in policies() {
        set_policy(&cluster, &operator, &callers, overload).await;
        let watch = tokio::task::spawn(watch_memory(pids(&cluster), lasts));
        let outcomes = send(&callers, requests_per_s * TIMES_CAPACITY, lasts, 1).await;
        let summary = sum_up(&outcomes, (RAMP.as_secs_f64(), lasts.as_secs_f64()));
        eprintln!("overload: {policy}: {}", line(&summary));
        all.extend(wrong(policy, &outcomes, &summary, &at_capacity));
        let growth = watch.await.unwrap();
        if let Some((name, bytes)) = growth.into_iter().find(|(_, bytes)| *bytes > GROWTH_MAX_BYTES) {
            all.push(format!("{policy}: the {name} grew by {} MiB", bytes >> 20));
        }
        all.extend(recovery(&callers).await.map(|late| format!("{policy}: {late}")));
        cluster.check_running();
    }
    all
}

fn line(summary: &Summary) -> String {
    let Summary { sent, admitted, kept, goodput, ttft_p95 } = summary;
    format!(
        "{sent} sent, {admitted} answered, {:.1} % of the interactive ones in time (p95 {ttft_p95:.0?}), \
         goodput {goodput:.0} tokens/s",
        kept * 100.0
    )
}

/// Batch requests wait in a short queue under all of them: they have no target.
fn policies() -> [(&'static str, Value); 4] {
    let batch = json!({"policy": "queue", "max_depth": 24, "max_wait_ms": 10_000});
    let wait = 800;
    [
        ("queue", json!({"policy": "queue", "max_depth": MAX_DEPTH, "max_wait_ms": wait})),
        ("shed", json!({"policy": "shed"})),
        (
            "shrink",
            json!({"policy": "shrink", "max_output_tokens": CUT_TOKENS, "max_depth": MAX_DEPTH, "max_wait_ms": wait}),
        ),
        (
            "overflow",
            json!({"policy": "overflow", "model": SMALLER, "max_depth": MAX_DEPTH, "max_wait_ms": wait}),
        ),
    ]
    .map(|(name, interactive)| (name, json!({"interactive": interactive, "batch": batch})))
}

const CAPACITY_LASTS: Duration = Duration::from_secs(20);

/// Just as many requests as the deployment can serve.
async fn measure_capacity(cluster: &Cluster, operator: &Api, callers: &Callers) -> Summary {
    set_policy(cluster, operator, callers, json!({})).await;
    closed(callers, CLIENTS_AT_CAPACITY, RAMP).await;
    let outcomes = closed(callers, CLIENTS_AT_CAPACITY, CAPACITY_LASTS).await;
    sum_up(&outcomes, (0.0, CAPACITY_LASTS.as_secs_f64()))
}

/// Another model with a worker of its own. Its device is simulated as well, so its size is of no account.
async fn add_smaller_model(cluster: &Cluster) {
    cluster.change(Part::SecondWorker, "pool = \"default\"", "pool = \"small\"");
    cluster.run(Part::SecondWorker);
    cluster.publish(smollm2(), SMALLER, "small").await;
}

/// The first tenant lets a smaller model answer.
async fn agree(operator: &Api) {
    let (_, tenants) = operator.control(Method::GET, "/tenants", None).await;
    let tenants = tenants["data"].as_array().unwrap();
    let lenient = tenants.iter().find(|tenant| tenant["name"] == "lenient").unwrap();
    let path = format!("/tenants/{}", lenient["id"].as_str().unwrap());
    let (status, tenant) = operator.control(Method::PATCH, &path, Some(json!({"may_overflow": true}))).await;
    assert!(status.is_success() && tenant["may_overflow"] == true, "{tenant}");
}

async fn set_policy(cluster: &Cluster, operator: &Api, callers: &Callers, overload: Value) {
    let (_, aliases) = operator.control(Method::GET, "/aliases", None).await;
    let alias = aliases["data"].as_array().unwrap().iter().find(|alias| alias["name"] == MODEL).unwrap();
    let version = &alias["targets"][0]["version_id"];
    let (_, deployments) = operator.control(Method::GET, "/deployments", None).await;
    let deployments = deployments["data"].as_array().unwrap();
    let deployment = deployments.iter().find(|deployment| deployment["version_id"] == *version).unwrap();
    let path = format!("/deployments/{}", deployment["id"].as_str().unwrap());
    let target = u64::try_from(TARGET.as_millis()).unwrap();
    let body = json!({"overload": overload, "slo": {"ttft_ms": target, "itl_ms": 100}});
    let (status, changed) = operator.control(Method::PATCH, &path, Some(body)).await;
    assert!(status.is_success(), "{changed}");
    cluster.config_in_force().await;
    // Whatever is measured anew is, before it counts.
    let first = one(callers, Kind::Interactive, 0, Instant::now()).await;
    assert!(first.status.is_success(), "{first:?}");
}

fn pids(cluster: &Cluster) -> Vec<(&'static str, u32)> {
    vec![("gateway", cluster.pid(Part::Gateway)), ("worker", cluster.pid(Part::Worker))]
}

/// By how much each process grew from a third of the time to its end.
async fn watch_memory(pids: Vec<(&'static str, u32)>, lasts: Duration) -> Vec<(&'static str, u64)> {
    tokio::time::sleep(lasts / 3).await;
    let before: Vec<u64> = pids.iter().map(|(_, pid)| resident_bytes(*pid)).collect();
    tokio::time::sleep(lasts * 2 / 3).await;
    let growth = pids.iter().zip(before);
    growth.map(|(&(name, pid), before)| (name, resident_bytes(pid).saturating_sub(before))).collect()
}

fn resident_bytes(pid: u32) -> u64 {
    memory::bytes(pid, "VmRSS").expect("it runs")
}

/// After the load: the first request that is served as on an idle deployment has to come within seconds.
async fn recovery(callers: &Callers) -> Option<String> {
    let started = Instant::now();
    let mut last: Option<Outcome> = None;
    while started.elapsed() < RECOVERY {
        let outcome = one(callers, Kind::Firm, 0, started).await;
        if outcome.ttft.is_some_and(|ttft| ttft <= TARGET / 4) && outcome.overload.is_none() {
            return None;
        }
        last = Some(outcome);
    }
    Some(format!("not served as usual {RECOVERY:?} after the load: {last:?}"))
}
