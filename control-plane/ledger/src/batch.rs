//! What happens to a batch: one transaction that takes sequence numbers, charges, rolls up, moves the watermarks of its
//! senders and the offsets that it was read from, or nothing of it.
//!
//! A record that Postgres cannot store must not hold up those around it: the batch is then halved until that record
//! is alone, and it is kept aside.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use weir_schemas::clock::Clock;
use weir_schemas::records::{ChargeData, CloudEvent};

use crate::incoming::{Content, DeadReason, Received, Stranger};
use crate::metrics::Metrics;
use crate::store::charges::{Arrival, Charge, settle};
use crate::store::dead_letters::Letter;
use crate::store::executions::Execution;
use crate::store::goodput::Goodput;
use crate::store::json::storable;
use crate::store::offsets::Move;
use crate::store::senders::{Claim, Place};
use crate::store::{Verdict, dead_letters, executions, idempotency, offsets, rejections, senders, verdict};

/// Collisions of concurrent transactions are rare and short.
const MAX_COLLISIONS: u32 = 5;
/// Longer than Postgres' own limits on a statement allow: its host is gone without a word.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// What is committed together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Of any number of senders, each sender's in its order.
    pub(crate) records: Vec<Received>,
    /// Messages without a sender.
    pub(crate) strangers: Vec<Stranger>,
    /// The offsets that all of these were read from; none where they came by RPC.
    pub(crate) moves: Vec<Move>,
}

/// What a transaction did.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) accepted: u64,
    pub(crate) resent: u64,
    pub(crate) dead: Vec<DeadReason>,
}

/// Why a batch was not taken. Nothing of it is lost: its source has it still.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// Another consumer has moved the offsets: it took these records, or will.
    #[error("another consumer has taken these partitions over")]
    Fenced,
    /// Postgres is away or unwell.
    #[error("the ledger's database does not take the batch")]
    Postgres(#[from] sqlx::Error),
}

/// Takes batches, from wherever they come.
#[derive(Debug, Clone)]
pub(crate) struct Intake {
    pub(crate) pool: PgPool,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

impl Intake {
    /// Takes a batch; afterwards everything of it is committed.
    pub(crate) async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        match self.commit(&batch).await {
            Err(AppendError::Postgres(error)) if verdict(&error) == Verdict::Poisoned => {
                let records = batch.records.len();
                tracing::warn!(records, "a batch holds a record that cannot be stored; taking it apart");
                self.isolate(batch.records).await?;
                // The offsets move when all is stored; until then what was stored is recognised when it comes again.
                self.commit(&Batch { records: Vec::new(), ..batch }).await
            }
            outcome => outcome,
        }
    }

    async fn isolate(&self, records: Vec<Received>) -> Result<(), AppendError> {
        let mut parts = vec![records];
        while let Some(mut records) = parts.pop() {
            let batch = Batch { records, ..Batch::default() };
            match self.commit(&batch).await {
                Err(AppendError::Postgres(error)) if verdict(&error) == Verdict::Poisoned => {
                    records = batch.records;
                    let behind = records.split_off(records.len() / 2);
                    if records.is_empty() {
                        let code =
                            error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
                        let refuse = |record: Received| {
                            record.into_dead(DeadReason::Refused, format!("Postgres: SQLSTATE {code}"))
                        };
                        let records = behind.into_iter().map(refuse).collect();
                        self.commit(&Batch { records, ..Batch::default() }).await?;
                    } else {
                        parts.extend([behind, records]);
                    }
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn commit(&self, batch: &Batch) -> Result<(), AppendError> {
        let started = Instant::now();
        let mut collisions = 0;
        let applied = loop {
            let attempt = tokio::time::timeout(COMMIT_TIMEOUT, self.attempt(batch)).await;
            match attempt.unwrap_or(Err(AppendError::Postgres(sqlx::Error::PoolTimedOut))) {
                Err(AppendError::Postgres(error))
                    if verdict(&error) == Verdict::Collided && collisions < MAX_COLLISIONS =>
                {
                    collisions += 1;
                }
                outcome => break outcome?,
            }
        };
        self.metrics.applied(&applied, started.elapsed().as_secs_f64());
        Ok(())
    }

    async fn attempt(&self, batch: &Batch) -> Result<Applied, AppendError> {
        let now = self.clock.now();
        let mut transaction = self.pool.begin().await?;
        if !offsets::advance(&mut transaction, &batch.moves, now).await? {
            return Err(AppendError::Fenced);
        }
        let applied = apply(&mut transaction, now, batch).await?;
        transaction.commit().await?;
        Ok(applied)
    }
}

async fn apply(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    batch: &Batch,
) -> Result<Applied, sqlx::Error> {
    let mut heard: Vec<&str> = batch.records.iter().map(|record| &*record.sender).collect();
    heard.sort_unstable();
    heard.dedup();
    let mut sorted = Sorted::default();
    if !heard.is_empty() {
        senders::lock(connection, &heard, now).await?;
        let places: Vec<Place<'_>> = batch.records.iter().map(place).collect();
        let known = senders::known(connection, &places).await?;
        sorted = sort_out(&batch.records, &known);
        claim(connection, &mut sorted).await?;
        write(connection, now, &sorted.fresh).await?;
        senders::advance(connection, &heard, now).await?;
    }
    sorted.dead.extend(batch.strangers.iter().map(Letter::of_stranger));
    let dead = dead_letters::insert(connection, &sorted.dead, now).await?;
    Ok(Applied {
        accepted: (batch.records.len() as u64).saturating_sub(sorted.resent),
        resent: sorted.resent,
        dead,
    })
}

fn place(record: &Received) -> Place<'_> {
    (&record.sender, record.sequence)
}

/// A batch, by what is to be done with each record.
#[derive(Debug, Default)]
struct Sorted<'a> {
    fresh: Vec<&'a Received>,
    dead: Vec<Letter<'a>>,
    resent: u64,
}

/// Tells fresh records from resent ones and from those that re-use a number.
fn sort_out<'a>(batch: &'a [Received], known: &HashMap<(String, i64), Option<String>>) -> Sorted<'a> {
    // Looked up by borrowed places.
    let known: HashMap<Place<'_>, Option<&str>> = known
        .iter()
        .map(|((sender, sequence), event)| ((sender.as_str(), *sequence), event.as_deref()))
        .collect();
    let mut sorted = Sorted::default();
    let mut in_batch: HashMap<Place<'_>, Option<&str>> = HashMap::new();
    for record in batch {
        let event = record.event_id();
        let held = match known.get(&place(record)) {
            Some(&held) => Some(held),
            None => match in_batch.entry(place(record)) {
                Entry::Occupied(first) => Some(*first.get()),
                Entry::Vacant(free) => {
                    free.insert(event);
                    None
                }
            },
        };
        match (held, event) {
            (None, _) => sorted.fresh.push(record),
            (Some(Some(held)), Some(event)) if held == event => sorted.resent += 1,
            (Some(_), Some(_)) => {
                let detail = "its number was used for another record";
                sorted.dead.push(Letter::of(record, DeadReason::SequenceConflict, detail));
            }
            // Nothing names it but its bytes: the same ones are not kept twice.
            (Some(_), None) => {
                sorted.resent += 1;
                if let Content::Dead(reason, detail) = &record.content {
                    sorted.dead.push(Letter::of(record, *reason, detail));
                }
            }
        }
    }
    sorted
}

/// Takes the fresh records' places; whose event is there under another number is kept aside instead.
async fn claim<'a>(connection: &mut PgConnection, sorted: &mut Sorted<'a>) -> Result<(), sqlx::Error> {
    let with_event = |record: &&'a Received| Claim {
        place: place(record),
        event_id: record.event_id().map(crate::store::text),
        topic: &record.topic,
    };
    let claims: Vec<Claim<'_>> = sorted.fresh.iter().map(with_event).collect();
    let claimed = senders::claim(connection, &claims).await?;
    // Almost always all of them; only otherwise is it worth asking for each.
    if claimed.len() < claims.len() {
        let is_claimed = |record: &&Received| claimed.contains(&(record.sender.to_string(), record.sequence));
        let (fresh, twice): (Vec<&'a Received>, Vec<&'a Received>) =
            sorted.fresh.iter().partition(|record| is_claimed(record));
        let numbers: Vec<Claim<'_>> =
            twice.iter().map(|record| Claim { event_id: None, ..with_event(record) }).collect();
        senders::claim(connection, &numbers).await?;
        sorted.fresh = fresh;
        let letter = |record| {
            Letter::of(record, DeadReason::DuplicateEvent, "the same event came under another number")
        };
        sorted.dead.extend(twice.into_iter().map(letter));
    }
    for record in &sorted.fresh {
        if let Content::Dead(reason, detail) = &record.content {
            sorted.dead.push(Letter::of(record, *reason, detail));
        }
    }
    Ok(())
}

/// Writes each fresh record where it belongs.
pub(crate) async fn write(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
    fresh: &[&Received],
) -> Result<(), sqlx::Error> {
    let texts: Vec<Cow<'_, str>> = fresh.iter().map(|record| storable(&record.payload)).collect();
    let mut charges: Vec<Charge<'_>> = Vec::new();
    let mut attempts: Vec<Execution<'_>> = Vec::new();
    let mut refused = Vec::new();
    let mut goodput = Goodput::default();
    for (record, text) in fresh.iter().zip(&texts) {
        let (sender, sequence) = place(record);
        match &record.content {
            Content::Charge(event) => {
                goodput.finished(&event.data);
                charges.push(Charge { sender, sequence, event, record: text, is_repeat: false });
            }
            Content::Execution(event) => attempts.push(Execution { sender, sequence, event, record: text }),
            Content::Rejection(event) => {
                goodput.rejected(&event.data);
                refused.push((sender, sequence, &event.data));
            }
            Content::Dead(..) => {}
        }
    }
    mark_repeats(connection, &mut charges).await?;
    settle(connection, &charges, Arrival::First, now).await?;
    executions::insert(connection, &attempts, now).await?;
    rejections::insert(connection, &refused, now).await?;
    goodput.write(connection).await
}

async fn mark_repeats(connection: &mut PgConnection, charges: &mut [Charge<'_>]) -> Result<(), sqlx::Error> {
    let events: Vec<&CloudEvent<ChargeData>> = charges.iter().map(|charge| charge.event).collect();
    let repeats = idempotency::repeats(connection, &events).await?;
    for charge in charges {
        charge.is_repeat = repeats.contains(&charge.event.id);
    }
    Ok(())
}
