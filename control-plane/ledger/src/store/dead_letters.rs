//! Records kept aside with their bytes and the reason.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::text;
use crate::dead_letters::DeadLetter;
use crate::incoming::{DeadReason, Received, Stranger};

/// A record on its way to be kept aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letter<'a> {
    sender: &'a str,
    sequence: i64,
    topic: &'a str,
    key: &'a [u8],
    payload: &'a [u8],
    pub(crate) reason: DeadReason,
    detail: &'a str,
}

impl<'a> Letter<'a> {
    /// A record of a sender.
    pub(crate) fn of(record: &'a Received, reason: DeadReason, detail: &'a str) -> Self {
        let Received { sender, sequence, topic, key, payload, content: _ } = record;
        Self { sender, sequence: *sequence, topic, key, payload, reason, detail }
    }

    /// A message without a sender.
    pub(crate) fn of_stranger(stranger: &'a Stranger) -> Self {
        let Stranger { place, offset, topic, key, payload, detail } = stranger;
        Self { sender: place, sequence: *offset, topic, key, payload, reason: DeadReason::NoSender, detail }
    }
}

/// Keeps letters aside, and returns the reasons of those that were not there: the same bytes with the same number are
/// kept once, however often they come.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    letters: &[Letter<'_>],
    now: DateTime<Utc>,
) -> Result<Vec<DeadReason>, sqlx::Error> {
    if letters.is_empty() {
        return Ok(Vec::new());
    }
    let kept: Vec<String> = sqlx::query_scalar(
        "INSERT INTO ledger_dead_letters (stored_at, sender, sequence, topic, key, payload, reason, detail)
         SELECT $1, t.* FROM unnest($2::text[], $3::bigint[], $4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::text[])
             AS t(sender, sequence, topic, key, payload, reason, detail)
         WHERE NOT EXISTS (SELECT FROM ledger_dead_letters d WHERE d.sender = t.sender AND d.sequence = t.sequence
             AND d.payload = t.payload)
         RETURNING reason",
    )
    .bind(now)
    .bind(letters.iter().map(|letter| letter.sender).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| letter.sequence).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| text(letter.topic)).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| letter.key).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| letter.payload).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| letter.reason.as_str()).collect::<Vec<_>>())
    .bind(letters.iter().map(|letter| text(letter.detail)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    let reason_of =
        |kept: String| letters.iter().map(|letter| letter.reason).find(|reason| reason.as_str() == kept);
    Ok(kept.into_iter().filter_map(reason_of).collect())
}

/// What was decided on a letter.
#[derive(Debug)]
pub(crate) struct Decision<'a> {
    pub(crate) number: i64,
    pub(crate) decision: &'static str,
    pub(crate) by: &'a str,
    pub(crate) note: &'a str,
}

/// Writes a decision; a second one violates the key.
pub(crate) async fn decide(
    connection: &mut PgConnection,
    decision: &Decision<'_>,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_dead_letter_decisions (dead_letter, decision, decided_by, note, decided_at)
         VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(decision.number)
    .bind(decision.decision)
    .bind(text(decision.by))
    .bind(text(decision.note))
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

/// A letter as it was kept.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Kept {
    pub(crate) sender: String,
    pub(crate) sequence: i64,
    pub(crate) topic: String,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) decision: Option<String>,
}

/// The letter with this number, locked until the transaction ends: it is decided on once.
pub(crate) async fn lock(connection: &mut PgConnection, number: i64) -> Result<Option<Kept>, sqlx::Error> {
    // First the lock, then the look: a decision made while waiting must be seen.
    sqlx::query("SELECT FROM ledger_dead_letters WHERE dead_letter = $1 FOR UPDATE")
        .bind(number)
        .execute(&mut *connection)
        .await?;
    sqlx::query_as(
        "SELECT sender, sequence, topic, key, payload, decision
         FROM ledger_dead_letters LEFT JOIN ledger_dead_letter_decisions USING (dead_letter) WHERE dead_letter = $1",
    )
    .bind(number)
    .fetch_optional(connection)
    .await
}

/// Letters above `after`, in order of their numbers.
pub(crate) async fn list(
    connection: &mut PgConnection,
    all: bool,
    after: i64,
    limit: i64,
) -> Result<Vec<DeadLetter>, sqlx::Error> {
    sqlx::query_as(
        "SELECT dead_letter, sender, sequence, topic, reason, detail, stored_at, payload, decision, decided_by, note,
             decided_at
         FROM ledger_dead_letters LEFT JOIN ledger_dead_letter_decisions USING (dead_letter)
         WHERE dead_letter > $2 AND (decision IS NULL OR $1) ORDER BY dead_letter LIMIT $3",
    )
    .bind(all)
    .bind(after)
    .bind(limit)
    .fetch_all(connection)
    .await
}
