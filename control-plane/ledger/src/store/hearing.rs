//! Since when the ledger has been hearing from each way in without a pause. Silence of one sender proves nothing: it
//! may have nothing to say. So what is noted is not the senders but the ways they take.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

/// Notes further apart than this are a pause: what counts on hearing starts anew. A restart of the ledger is shorter.
pub(crate) const PAUSE: TimeDelta = TimeDelta::seconds(30);
/// The RPC listener: it is heard while this process runs and Postgres answers.
pub(crate) const RPC: &str = "rpc";

/// Notes that a way in has been read to its end just now.
pub(crate) async fn note(
    connection: &mut PgConnection,
    source: &str,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_hearing AS h (source, heard_since, heard_at) VALUES ($1, $2, $2)
         ON CONFLICT (source) DO UPDATE SET heard_at = greatest(h.heard_at, excluded.heard_at),
             heard_since = CASE WHEN excluded.heard_at - h.heard_at > $3 THEN excluded.heard_at ELSE h.heard_since END",
    )
    .bind(source)
    .bind(now)
    .bind(PAUSE)
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
