//! Since when the ledger has been hearing from each way in without a pause. Silence of one sender proves nothing: it
//! may have nothing to say. So what is noted is not the senders but the ways they take: the RPC listener, and each
//! partition of Kafka's topics.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

/// Notes further apart than this are a pause: what counts on hearing starts anew. A restart of the ledger is shorter.
pub(crate) const PAUSE: TimeDelta = TimeDelta::seconds(30);
/// The RPC listener: it is heard while this process runs and Postgres answers.
pub(crate) const RPC: &str = "rpc";

/// Notes that these ways in have been read to their end just now.
pub(crate) async fn note(
    connection: &mut PgConnection,
    sources: &[String],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_hearing AS h (source, heard_since, heard_at)
         SELECT source, $2, $2 FROM unnest($1::text[]) AS t(source) ORDER BY source
         ON CONFLICT (source) DO UPDATE SET heard_at = greatest(h.heard_at, excluded.heard_at),
             heard_since = CASE WHEN excluded.heard_at - h.heard_at > $3 THEN excluded.heard_at ELSE h.heard_since END",
    )
    .bind(sources)
    .bind(now)
    .bind(PAUSE)
    .execute(connection)
    .await?;
    Ok(())
}

/// Forgets the partitions of a topic that was made anew, or of all: what is there now is noted again soon, and what
/// counts on hearing starts anew.
pub(crate) async fn forget(connection: &mut PgConnection, topic: Option<&str>) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM ledger_hearing WHERE source <> $1 AND ($2::text IS NULL OR starts_with(source, $2 || '/'))")
        .bind(RPC)
        .bind(topic)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether every way in has been heard without a pause for so long.
pub(crate) async fn has_heard_for(
    connection: &mut PgConnection,
    grace: TimeDelta,
    now: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT count(*) > 0 AND bool_and(heard_since <= $1 AND heard_at >= $2) FROM ledger_hearing",
    )
    .bind(now - grace)
    .bind(now - PAUSE)
    .fetch_one(connection)
    .await
}
