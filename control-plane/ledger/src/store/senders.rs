//! Senders, their sequence numbers and watermarks, and the generation that tells them to send again.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// A sender's number for a record: what the ledger takes once.
pub(crate) type Place<'a> = (&'a str, i64);

/// What a sender is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Standing {
    /// 0 for a sender never heard of.
    pub(crate) watermark: i64,
    /// Other than before: what is above the watermark is to be sent again.
    pub(crate) generation: i64,
}

/// How far a sender has been heard.
pub(crate) async fn standing(connection: &mut PgConnection, sender: &str) -> Result<Standing, sqlx::Error> {
    sqlx::query_as(
        "SELECT coalesce((SELECT watermark FROM ledger_senders WHERE sender = $1), 0) AS watermark, generation
         FROM ledger_generation",
    )
    .bind(sender)
    .fetch_one(connection)
    .await
}

/// Locks the senders' rows until the transaction ends, so that batches of one sender are serial. `senders` is sorted:
/// two transactions lock in one order.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    senders: &[&str],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_senders (sender, watermark, heard_at)
         SELECT sender, 0, $2 FROM unnest($1::text[]) WITH ORDINALITY AS t(sender, rank) ORDER BY rank
         ON CONFLICT DO NOTHING",
    )
    .bind(senders)
    .bind(now)
    .execute(&mut *connection)
    .await?;
    sqlx::query("SELECT FROM ledger_senders WHERE sender = ANY($1) ORDER BY sender COLLATE \"C\" FOR UPDATE")
        .bind(senders)
        .execute(connection)
        .await?;
    Ok(())
}

/// Which of these places were taken before, with the event each holds.
pub(crate) async fn known(
    connection: &mut PgConnection,
    places: &[Place<'_>],
) -> Result<HashMap<(String, i64), Option<String>>, sqlx::Error> {
    let rows: Vec<(String, i64, Option<String>)> = sqlx::query_as(
        "SELECT sender, sequence, event_id FROM unnest($1::text[], $2::bigint[]) AS t(sender, sequence)
         JOIN ledger_sequences USING (sender, sequence)",
    )
    .bind(places.iter().map(|(sender, _)| *sender).collect::<Vec<_>>())
    .bind(places.iter().map(|(_, sequence)| *sequence).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|(sender, sequence, event)| ((sender, sequence), event)).collect())
}

/// A place to be taken.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) event_id: Option<String>,
    pub(crate) topic: &'a str,
}

/// Takes places; returns those whose event no other place holds.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    claims: &[Claim<'_>],
) -> Result<HashSet<(String, i64)>, sqlx::Error> {
    let taken: Vec<(String, i64)> = sqlx::query_as(
        "INSERT INTO ledger_sequences (sender, sequence, event_id, topic)
         SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[])
         ON CONFLICT (event_id) DO NOTHING RETURNING sender, sequence",
    )
    .bind(claims.iter().map(|claim| claim.place.0).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| claim.place.1).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| claim.event_id.as_deref()).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| super::text(claim.topic)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    Ok(taken.into_iter().collect())
}

/// Moves the watermarks over every contiguous sequence above them.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    senders: &[&str],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    // Step by step from the watermark to the first gap: the cost is that of the steps, however much lies above.
    sqlx::query(
        "UPDATE ledger_senders s SET heard_at = $2, watermark = (
             WITH RECURSIVE run(sequence) AS (
                 SELECT s.watermark
                 UNION ALL
                 SELECT q.sequence FROM run JOIN ledger_sequences q
                     ON q.sender = s.sender AND q.sequence = run.sequence + 1)
             SELECT max(sequence) FROM run)
         WHERE sender = ANY($1)",
    )
    .bind(senders)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}
