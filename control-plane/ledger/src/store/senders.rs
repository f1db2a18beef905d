//! Senders, their sequence numbers and watermarks.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// The watermark; 0 for a sender never heard of.
pub(crate) async fn watermark(connection: &mut PgConnection, sender: &str) -> Result<i64, sqlx::Error> {
    let watermark = sqlx::query_scalar("SELECT watermark FROM ledger_senders WHERE sender = $1")
        .bind(sender)
        .fetch_optional(connection)
        .await?;
    Ok(watermark.unwrap_or(0))
}

/// The watermark, with the sender's row locked until the transaction ends: batches of one sender are serial.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    sender: &str,
    now: DateTime<Utc>,
) -> Result<i64, sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_senders (sender, watermark, heard_at) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING",
    )
    .bind(sender)
    .bind(now)
    .execute(&mut *connection)
    .await?;
    sqlx::query_scalar("SELECT watermark FROM ledger_senders WHERE sender = $1 FOR UPDATE")
        .bind(sender)
        .fetch_one(connection)
        .await
}

/// Which of these sequences were accepted before, with the event each held.
pub(crate) async fn known(
    connection: &mut PgConnection,
    sender: &str,
    sequences: &[i64],
) -> Result<HashMap<i64, Option<String>>, sqlx::Error> {
    let rows: Vec<(i64, Option<String>)> = sqlx::query_as(
        "SELECT sequence, event_id FROM ledger_sequences WHERE sender = $1 AND sequence = ANY($2)",
    )
    .bind(sender)
    .bind(sequences)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().collect())
}

/// A sequence number to be taken.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) sequence: i64,
    pub(crate) event_id: Option<String>,
    pub(crate) topic: String,
}

/// Takes sequences for a sender; returns those whose event no other sequence of any sender holds.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    sender: &str,
    claims: &[Claim],
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO ledger_sequences (sender, sequence, event_id, topic)
         SELECT $1, * FROM unnest($2::bigint[], $3::text[], $4::text[])
         ON CONFLICT (event_id) DO NOTHING RETURNING sequence",
    )
    .bind(sender)
    .bind(claims.iter().map(|claim| claim.sequence).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| claim.event_id.clone()).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| super::text(&claim.topic)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await
}

/// Moves the watermark over every contiguous sequence above it, and returns it.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    sender: &str,
    watermark: i64,
    now: DateTime<Utc>,
) -> Result<i64, sqlx::Error> {
    // In a contiguous run the sequence and its rank differ by the same number all along.
    sqlx::query_scalar(
        "UPDATE ledger_senders SET heard_at = $3, watermark = coalesce((
             SELECT max(sequence) FROM (
                 SELECT sequence, row_number() OVER (ORDER BY sequence) AS rank FROM ledger_sequences
                 WHERE sender = $1 AND sequence > $2) above
             WHERE sequence = $2 + rank), $2)
         WHERE sender = $1 RETURNING watermark",
    )
    .bind(sender)
    .bind(watermark)
    .bind(now)
    .fetch_one(connection)
    .await
}
