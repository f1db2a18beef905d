//! The run: ten clients on one tenant while its limits change, then thousands that leave, rejections and retries; every
//! violation is said at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use super::clients::{Seen, Usage, hammer};
use super::windows::{InForce, Settled, count, worst};
use super::{aborts, retries};
use crate::api::{Api, Tenant};
use crate::cluster::Cluster;
use crate::installation::MODEL;
use crate::wait::until;

/// A device whose step takes about as long as a small model's on a GPU; nothing depends on it.
const SIM: &str = "step_us = 2000\ntoken_us = 20";
/// Clients of the tenant.
const CLIENTS: u64 = 10;
/// The tenant's tokens a minute: a small part of what the clients ask for.
const LIMIT: i64 = 60_000;
/// From the first refusal, which may be of a large request, until smaller ones have taken the rest of the burst.
const SPENDING: Duration = Duration::from_secs(3);
/// Then, for a while, twice that, then half.
const RAISED: i64 = 120_000;
const CUT: i64 = 30_000;
/// Last, prompt tokens a minute on the model alone.
const INPUT_LIMIT: i64 = 6_000;

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// How long the first limit is hammered.
    pub steady: Duration,
    /// How long each of the others.
    pub changed: Duration,
    /// Clients that leave.
    pub aborts: usize,
    /// Of what the limit gives in the steady time, hundredths that must be had; 0 where the time is too short to say.
    pub usable_percent: i64,
}

impl Size {
    /// `make hammer`.
    pub const fn full() -> Self {
        let (steady, changed) = (Duration::from_secs(180), Duration::from_secs(25));
        Self { steady, changed, aborts: 10_000, usable_percent: 97 }
    }

    /// The form that every test run takes.
    pub const fn short() -> Self {
        let (steady, changed) = (Duration::from_secs(8), Duration::from_secs(4));
        Self { steady, changed, aborts: 500, usable_percent: 0 }
    }
}

/// Everything that was violated; empty is the normal answer.
pub async fn run(size: Size) -> Vec<String> {
    let cluster = Cluster::start_simulated(SIM, "").await;
    let operator = cluster.operator();
    let ledger = PgPool::connect(cluster.database_url()).await.unwrap();
    let mut wrong = limits_hold(&operator, &ledger, size).await;
    wrong.extend(aborts::run(&cluster, &operator, size.aborts).await);
    wrong.extend(retries::rejections(&operator, &ledger).await);
    wrong.extend(retries::repeats(&operator, &ledger).await);
    wrong.extend(retries::lost_replica(&cluster, &operator, &ledger).await);
    cluster.check_running();
    wrong
}

/// When what was in force, microseconds of the wall clock.
#[derive(Debug, Clone, Copy)]
struct Phases {
    begun_us: i64,
    /// The burst is spent.
    steady_us: i64,
    raised_us: i64,
    cut_us: i64,
    input_us: i64,
}

async fn limits_hold(operator: &Api, ledger: &PgPool, size: Size) -> Vec<String> {
    let begun_us = now_us();
    let tenant = operator.create_tenant("hammered", json!({"tokens_per_minute": LIMIT}), Utc::now()).await;
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (tenant, seen) = (tenant.clone(), seen.clone());
            tokio::spawn(async move { hammer(&tenant, number, &seen).await })
        })
        .collect();
    until("the burst is spent", || async { (seen.refused.load(Ordering::Relaxed) > 0).then_some(()) }).await;
    tokio::time::sleep(SPENDING).await;
    let steady_us = now_us();
    tokio::time::sleep(size.steady).await;
    let raised_us = now_us();
    change(operator, &tenant, &seen, json!({"limits": {"tokens_per_minute": RAISED}}), RAISED).await;
    tokio::time::sleep(size.changed).await;
    let cut_us = change(operator, &tenant, &seen, json!({"limits": {"tokens_per_minute": CUT}}), CUT).await;
    tokio::time::sleep(size.changed).await;
    let on_model = json!({"limits": {}, "model_limits": {MODEL: {"input_tokens_per_minute": INPUT_LIMIT}}});
    let input_us = change(operator, &tenant, &seen, on_model, INPUT_LIMIT).await;
    tokio::time::sleep(size.changed).await;
    seen.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let charges = charges(ledger, &tenant, &seen).await;
    let mut wrong = std::mem::take(&mut *seen.wrong.lock().unwrap());
    wrong.extend(as_told(&charges, &seen));
    let phases = Phases { begun_us, steady_us, raised_us, cut_us, input_us };
    wrong.extend(within_limits(&charges, phases));
    wrong.extend(usable(&charges, phases, size));
    eprintln!("hammer: {} answered, {} refused", charges.len(), seen.refused.load(Ordering::Relaxed));
    wrong
}

/// Changes the tenant and waits until a client has met the limit: microseconds of the wall clock.
async fn change(operator: &Api, tenant: &Tenant, seen: &Seen, body: Value, limit: i64) -> i64 {
    let before_us = now_us();
    let (status, answer) =
        operator.control(Method::PATCH, &format!("/tenants/{}", tenant.id), Some(body)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let since_us = until("the limit applies", || async { seen.limit_since(limit) }).await;
    eprintln!(
        "hammer: a limit of {limit} tokens a minute applied after {} ms",
        (since_us - before_us) / 1_000
    );
    since_us
}

/// A row of the ledger.
struct Charge {
    id: String,
    usage: Usage,
    finished_us: i64,
}

/// Every chargeable row of the tenant, by its end, once all that was answered is there.
async fn charges(ledger: &PgPool, tenant: &Tenant, seen: &Seen) -> Vec<Charge> {
    let answered = seen.answered.lock().unwrap().len();
    until("everything is charged", || async {
        let rows: Vec<(Option<String>, i64, i64, DateTime<Utc>)> = sqlx::query_as(
            "SELECT client_request_id, prompt_tokens, generated_tokens, finished_at FROM ledger_charges
             WHERE tenant_id = $1 AND chargeable ORDER BY finished_at",
        )
        .bind(&tenant.id)
        .fetch_all(ledger)
        .await
        .unwrap();
        let charge = |(id, prompt, generated, finished): (Option<String>, i64, i64, DateTime<Utc>)| Charge {
            id: id.unwrap_or_default(),
            usage: Usage { prompt, generated },
            finished_us: finished.timestamp_micros(),
        };
        (rows.len() >= answered).then(|| rows.into_iter().map(charge).collect())
    })
    .await
}

/// What each client was told is what was charged, once; and nothing else was.
fn as_told(charges: &[Charge], seen: &Seen) -> Vec<String> {
    let mut answered = seen.answered.lock().unwrap().clone();
    let mut wrong = Vec::new();
    for Charge { id, usage, .. } in charges {
        let told = answered.remove(id);
        if told != Some(*usage) {
            wrong.push(format!("{id}: charged {usage:?}, told {told:?}"));
        }
    }
    wrong.extend(answered.into_keys().map(|id| format!("{id}: answered and not charged")));
    wrong
}

/// Every stretch of time, over all phases of the limit on all tokens, and then of the one on the model's prompts. A limit
/// counts as raised from when the change was asked for, and as cut from when a client met it. What was saved up under the
/// first limit is the burst throughout: a raise gives none.
fn within_limits(charges: &[Charge], phases: Phases) -> Vec<String> {
    let Phases { begun_us, raised_us, cut_us, input_us, .. } = phases;
    let settled = |of: fn(Usage) -> i64, from_us: i64, until_us: i64| -> Vec<Settled> {
        let within = charges.iter().filter(|charge| (from_us..until_us).contains(&charge.finished_us));
        within.map(|charge| Settled { at_us: charge.finished_us, tokens: of(charge.usage) }).collect()
    };
    let from = |since_us, per_minute| InForce { since_us, per_minute };
    let all = settled(|usage| usage.prompt + usage.generated, begun_us, input_us);
    let limits = [from(begun_us, LIMIT), from(raised_us, RAISED), from(cut_us, CUT)];
    let steady: Vec<Settled> = all.iter().copied().filter(|settled| settled.at_us < raised_us).collect();
    let input = settled(|usage| usage.prompt, input_us, i64::MAX);
    [
        bounded("all tokens, the first limit", &limits[..1], &steady, LIMIT + LIMIT / 4),
        bounded("all tokens, raised and cut", &limits, &all, LIMIT + RAISED / 4),
        bounded(
            "prompt tokens of the model",
            &[from(input_us, INPUT_LIMIT)],
            &input,
            INPUT_LIMIT + INPUT_LIMIT / 4,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn bounded(what: &str, limits: &[InForce], settled: &[Settled], burst_and_debt: i64) -> Option<String> {
    let worst = worst(limits, settled);
    let said = format!(
        "{what}: of {} settlements, the worst stretch is {:.3} s with {} tokens, {:.0} beyond limit x time; burst and debt are \
         {burst_and_debt}",
        settled.len(),
        count(worst.length_us) / 1e6,
        worst.tokens,
        worst.excess()
    );
    eprintln!("hammer: {said}");
    (worst.excess() > count(burst_and_debt)).then_some(said)
}

/// Of what the limit gives once the burst is spent, so much could be had.
fn usable(charges: &[Charge], phases: Phases, size: Size) -> Option<String> {
    let within =
        charges.iter().filter(|charge| (phases.steady_us..phases.raised_us).contains(&charge.finished_us));
    let settled: i64 = within.map(|charge| charge.usage.prompt + charge.usage.generated).sum();
    let given = count(LIMIT) * count(phases.raised_us - phases.steady_us) / 60e6;
    let percent = count(settled) / given * 100.0;
    let said =
        format!("{settled} tokens were settled of the {given:.0} that the limit gives: {percent:.1} %");
    eprintln!("hammer: {said}");
    (percent < count(size.usable_percent)).then_some(said)
}

fn now_us() -> i64 {
    Utc::now().timestamp_micros()
}
