//! What happens to a batch: one transaction that takes sequence numbers, charges, rolls up and moves the watermark,
//! or nothing of it.
//!
//! A record that Postgres cannot store must not hold up those behind it: the batch is then taken record by record,
//! and the one that fails alone is kept aside.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use weir_schemas::clock::Clock;
use weir_schemas::records::{ChargeData, CloudEvent};

use crate::incoming::{Content, DeadReason, Received};
use crate::metrics::Metrics;
use crate::store::charges::{Arrival, Charge, settle};
use crate::store::executions::Execution;
use crate::store::goodput::Goodput;
use crate::store::json::storable;
use crate::store::senders::Claim;
use crate::store::{Verdict, dead_letters, executions, idempotency, rejections, senders, verdict};

/// Collisions of concurrent transactions are rare and short.
const MAX_COLLISIONS: u32 = 5;

/// What a transaction did.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) watermark: i64,
    pub(crate) accepted: u64,
    pub(crate) resent: u64,
    pub(crate) dead: Vec<DeadReason>,
}

/// Takes a sender's batch; returns the sender's watermark once everything is committed.
pub(crate) async fn append(
    pool: &PgPool,
    clock: &Clock,
    metrics: &Metrics,
    sender: &str,
    batch: Vec<Received>,
) -> Result<i64, sqlx::Error> {
    if batch.is_empty() {
        return senders::watermark(&mut *pool.acquire().await?, sender).await;
    }
    match commit(pool, clock, metrics, sender, &batch).await {
        Err(error) if verdict(&error) == Verdict::Poisoned => {
            tracing::warn!(
                sender,
                records = batch.len(),
                "a batch holds a record that cannot be stored; taking it apart"
            );
            one_by_one(pool, clock, metrics, sender, batch).await
        }
        outcome => outcome,
    }
}

async fn one_by_one(
    pool: &PgPool,
    clock: &Clock,
    metrics: &Metrics,
    sender: &str,
    batch: Vec<Received>,
) -> Result<i64, sqlx::Error> {
    let mut watermark = 0;
    for record in batch {
        let alone = std::slice::from_ref(&record);
        watermark = match commit(pool, clock, metrics, sender, alone).await {
            Err(error) if verdict(&error) == Verdict::Poisoned => {
                let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
                let refused = record.into_dead(DeadReason::Refused, format!("Postgres: SQLSTATE {code}"));
                commit(pool, clock, metrics, sender, &[refused]).await?
            }
            outcome => outcome?,
        };
    }
    Ok(watermark)
}

async fn commit(
    pool: &PgPool,
    clock: &Clock,
    metrics: &Metrics,
    sender: &str,
    batch: &[Received],
) -> Result<i64, sqlx::Error> {
    let started = Instant::now();
    let mut collisions = 0;
    let applied = loop {
        match attempt(pool, clock.now(), sender, batch).await {
            Err(error) if verdict(&error) == Verdict::Collided && collisions < MAX_COLLISIONS => {
                collisions += 1
            }
            outcome => break outcome?,
        }
    };
    metrics.applied(&applied, started.elapsed().as_secs_f64());
    Ok(applied.watermark)
}

async fn attempt(
    pool: &PgPool,
    now: DateTime<Utc>,
    sender: &str,
    batch: &[Received],
) -> Result<Applied, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let applied = apply(&mut transaction, now, sender, batch).await?;
    transaction.commit().await?;
    Ok(applied)
}

async fn apply(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    sender: &str,
    batch: &[Received],
) -> Result<Applied, sqlx::Error> {
    let before = senders::lock(connection, sender, now).await?;
    let sequences: Vec<i64> = batch.iter().map(|record| record.sequence).collect();
    let known = senders::known(connection, sender, &sequences).await?;
    let mut sorted = sort_out(batch, &known);
    claim(connection, sender, &mut sorted).await?;
    write(connection, now, sender, &sorted).await?;
    let watermark = senders::advance(connection, sender, before, now).await?;
    Ok(Applied {
        watermark,
        accepted: (batch.len() as u64).saturating_sub(sorted.resent),
        resent: sorted.resent,
        dead: sorted.dead.iter().map(|(_, reason, _)| *reason).collect(),
    })
}

/// A batch, by what is to be done with each record.
#[derive(Debug, Default)]
struct Sorted<'a> {
    fresh: Vec<&'a Received>,
    dead: Vec<(&'a Received, DeadReason, &'a str)>,
    resent: u64,
}

/// Tells fresh records from resent ones and from those that re-use a number.
fn sort_out<'a>(batch: &'a [Received], known: &HashMap<i64, Option<String>>) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    let mut in_batch: HashMap<i64, Option<&str>> = HashMap::new();
    for record in batch {
        let event = record.event_id();
        let held = match known.get(&record.sequence) {
            Some(held) => Some(held.as_deref()),
            None => in_batch.insert(record.sequence, event),
        };
        match (held, event) {
            (None, _) => sorted.fresh.push(record),
            (Some(Some(held)), Some(event)) if held != event => {
                sorted.dead.push((
                    record,
                    DeadReason::SequenceConflict,
                    "its number was used for another record",
                ));
            }
            (Some(_), _) => sorted.resent += 1,
        }
    }
    sorted
}

/// Takes the fresh records' numbers; whose event is there under another number is kept aside instead.
async fn claim<'a>(
    connection: &mut PgConnection,
    sender: &str,
    sorted: &mut Sorted<'a>,
) -> Result<(), sqlx::Error> {
    let with_event = |record: &&Received| Claim {
        sequence: record.sequence,
        event_id: record.event_id().map(crate::store::text),
        topic: record.topic.clone(),
    };
    let claims: Vec<Claim> = sorted.fresh.iter().map(with_event).collect();
    let claimed: HashSet<i64> = senders::claim(connection, sender, &claims).await?.into_iter().collect();
    let (fresh, twice): (Vec<&'a Received>, Vec<&'a Received>) =
        sorted.fresh.iter().partition(|record| claimed.contains(&record.sequence));
    if !twice.is_empty() {
        let numbers: Vec<Claim> =
            twice.iter().map(|record| Claim { event_id: None, ..with_event(record) }).collect();
        senders::claim(connection, sender, &numbers).await?;
    }
    sorted.fresh = fresh;
    for record in twice {
        sorted.dead.push((record, DeadReason::DuplicateEvent, "the same event came under another number"));
    }
    for record in &sorted.fresh {
        if let Content::Dead(reason, detail) = &record.content {
            sorted.dead.push((record, *reason, detail));
        }
    }
    Ok(())
}

/// Writes each fresh record where it belongs.
async fn write(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    sender: &str,
    sorted: &Sorted<'_>,
) -> Result<(), sqlx::Error> {
    let texts: Vec<Cow<'_, str>> = sorted.fresh.iter().map(|record| storable(&record.payload)).collect();
    let mut texts = texts.iter().map(AsRef::as_ref);
    let mut charges: Vec<Charge<'_>> = Vec::new();
    let mut attempts: Vec<Execution<'_>> = Vec::new();
    let mut refused = Vec::new();
    let mut goodput = Goodput::default();
    for record in &sorted.fresh {
        let (sequence, text) = (record.sequence, texts.next().unwrap_or_default());
        match &record.content {
            Content::Charge(event) => {
                goodput.finished(&event.data);
                charges.push(Charge { sender, sequence, event, record: text, is_repeat: false });
            }
            Content::Execution(event) => attempts.push(Execution { sequence, event, record: text }),
            Content::Rejection(event) => {
                goodput.rejected(&event.data);
                refused.push((sequence, &event.data));
            }
            Content::Dead(..) => {}
        }
    }
    mark_repeats(connection, &mut charges).await?;
    settle(connection, &charges, Arrival::First, now).await?;
    executions::insert(connection, sender, &attempts, now).await?;
    rejections::insert(connection, sender, &refused, now).await?;
    goodput.write(connection).await?;
    dead_letters::insert(connection, sender, &sorted.dead, now).await
}

async fn mark_repeats(connection: &mut PgConnection, charges: &mut [Charge<'_>]) -> Result<(), sqlx::Error> {
    let events: Vec<&CloudEvent<ChargeData>> = charges.iter().map(|charge| charge.event).collect();
    let repeats = idempotency::repeats(connection, &events).await?;
    for charge in charges {
        charge.is_repeat = repeats.contains(&charge.event.id);
    }
    Ok(())
}
