//! Requests whose gateway is gone with its disk are charged from their execution records, after a grace.
//!
//! The grace runs from the arrival of a request's last execution, and only while the ledger hears from every way in
//! without a pause (`store/hearing.rs`): after an outage it starts anew, because the outage's records are still on
//! their way. A gateway that was heard of within the grace is not gone; it has the request in its log, until it
//! reports requests that it received so long after the last execution that its log must be past it.
//!
//! A close that comes all the same is a correction (`store/charges/corrections.rs`), never a second charge.

mod from_executions;

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, PgPool};
use tokio::sync::watch;
use weir_schemas::clock::Clock;
use weir_schemas::records::{ChargeRecord, ExecutionRecord};

use crate::batch::Intake;
use crate::store::charges::{Arrival, Charge, settle};
use crate::store::orphans::OrphanExecution;
use crate::store::{Verdict, count, hearing, idempotency, orphans, verdict};
use from_executions::charge_record;

/// Several passes within the pause that would start the grace anew; each looks again at a minute's executions.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Requests of one pass: an installation that lost a busy gateway has hundreds.
const PASS_REQUESTS: i64 = 500;

/// Looks for orphans, once there are tables, for ever.
pub(crate) async fn tend(
    intake: Intake,
    mut migrated: watch::Receiver<bool>,
    grace: Duration,
    has_kafka: bool,
) {
    // Its sender lives as long as the ledger.
    drop(migrated.wait_for(|&migrated| migrated).await);
    let mut is_stale = !has_kafka;
    loop {
        // Partitions of a broker that is not configured any more would be waited for without end.
        if is_stale && let Ok(mut connection) = intake.pool.acquire().await {
            is_stale = hearing::forget(&mut connection, None).await.is_err();
        }
        match charge_orphans(&intake.pool, &intake.clock, grace).await {
            Ok(0) => {}
            Ok(charged) => {
                intake.metrics.orphans(u64::try_from(charged).unwrap_or(0));
                tracing::warn!(charged, "requests without a charge record were charged from executions");
            }
            Err(error) => match verdict(&error) {
                // A close came at the same moment; the next pass sees it.
                Verdict::Poisoned | Verdict::Collided => {
                    let error = &error as &dyn std::error::Error;
                    tracing::info!(error, "a pass for requests without a charge record is repeated");
                }
                // Said by whoever takes records.
                Verdict::Away => {}
            },
        }
        tokio::time::sleep(PASS_INTERVAL).await;
    }
}

/// One pass: returns how many requests were charged, or charged anew because executions came late.
pub async fn charge_orphans(pool: &PgPool, clock: &Clock, grace: Duration) -> Result<i64, sqlx::Error> {
    let grace = TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
    let now = clock.now();
    let mut transaction = pool.begin().await?;
    if !orphans::take_turn(&mut transaction).await? {
        return Ok(0);
    }
    hearing::note(&mut transaction, &[hearing::RPC.to_owned()], now).await?;
    let mut charged = 0;
    if hearing::has_heard_for(&mut transaction, grace, now).await? {
        orphans::look(&mut transaction, now - grace).await?;
        let executions = orphans::due(&mut transaction, now - grace, grace, PASS_REQUESTS).await?;
        charged = charge(&mut transaction, &executions, now).await?;
    }
    transaction.commit().await?;
    Ok(charged)
}

/// A request's charge as the ledger makes it, and its place: that of the last execution.
#[derive(Debug)]
struct Made {
    sender: String,
    sequence: i64,
    event: ChargeRecord,
    record: String,
}

async fn charge(
    connection: &mut PgConnection,
    executions: &[OrphanExecution],
    now: DateTime<Utc>,
) -> Result<i64, sqlx::Error> {
    let made: Vec<Made> = executions
        .chunk_by(|one, other| one.request_id == other.request_id)
        .filter_map(|attempts| make(attempts, now).transpose())
        .collect::<Result<_, _>>()
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let requests: Vec<String> = made.iter().map(|made| made.event.id.clone()).collect();
    let made = only_changed(connection, &requests, made).await?;
    let events: Vec<&ChargeRecord> = made.iter().map(|made| &made.event).collect();
    let repeats = idempotency::repeats(connection, &events).await?;
    let charges: Vec<Charge<'_>> = made
        .iter()
        .map(|made| Charge {
            sender: &made.sender,
            sequence: made.sequence,
            event: &made.event,
            record: &made.record,
            is_repeat: repeats.contains(&made.event.id),
        })
        .collect();
    let settled = settle(connection, &charges, Arrival::FromExecutions, now).await?;
    orphans::forget(connection, &requests).await?;
    Ok(settled.charged)
}

fn make(attempts: &[OrphanExecution], now: DateTime<Utc>) -> Result<Option<Made>, serde_json::Error> {
    let records: Vec<ExecutionRecord> =
        attempts.iter().map(|attempt| serde_json::from_str(&attempt.record)).collect::<Result<_, _>>()?;
    let Some((last, event)) = attempts.last().zip(charge_record(&records, now)) else { return Ok(None) };
    let record = serde_json::to_string(&event)?;
    Ok(Some(Made { sender: last.sender.clone(), sequence: last.sequence, event, record }))
}

/// A request charged from executions before is charged anew only if they give something else now.
async fn only_changed(
    connection: &mut PgConnection,
    requests: &[String],
    made: Vec<Made>,
) -> Result<Vec<Made>, sqlx::Error> {
    let charged: HashMap<String, (i64, i64, i64)> = orphans::charged(connection, requests)
        .await?
        .into_iter()
        .map(|(request, prompt, cached, generated)| (request, (prompt, cached, generated)))
        .collect();
    let is_changed = |made: &Made| {
        let data = &made.event.data;
        let tokens =
            (count(data.prompt_tokens), count(data.cached_prompt_tokens), count(data.generated_tokens));
        charged.get(&made.event.id) != Some(&tokens)
    };
    Ok(made.into_iter().filter(is_changed).collect())
}
