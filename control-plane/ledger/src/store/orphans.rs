//! Requests that workers executed and no gateway has charged.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

/// A transaction that stored executions may commit this long after the time it noted for them, by another ledger's
/// clock; a batch is given up after half of it.
const LATEST_COMMIT: TimeDelta = TimeDelta::minutes(1);

/// Takes the turn of the one process that looks for orphans now; false if another has it. Its statements may then take
/// longer than a batch's.
pub(crate) async fn take_turn(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query("SET LOCAL statement_timeout = '10min'").execute(&mut *connection).await?;
    sqlx::query_scalar("SELECT pg_try_advisory_xact_lock(hashtextextended('weir ledger orphans', 0))")
        .fetch_one(connection)
        .await
}

/// Looks through the executions stored since the last look and before `until`, and keeps in mind the requests that
/// no gateway has charged; forgets those that one has.
pub(crate) async fn look(connection: &mut PgConnection, until: DateTime<Utc>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO ledger_orphans (request_id, found_at)
         SELECT DISTINCT e.request_id, $1 FROM ledger_executions e
         WHERE e.stored_at > (SELECT reconciled_to FROM ledger_reconciled) - $2 AND e.stored_at <= $1
             AND e.outcome <> 'refused'
             AND NOT EXISTS (SELECT FROM ledger_unpriced u WHERE u.request_id = e.request_id)
             AND NOT EXISTS (SELECT FROM ledger_charges c WHERE c.request_id = e.request_id
                 AND (c.reason <> 'execution' OR c.charged_at > e.stored_at + $2))
         ON CONFLICT DO NOTHING",
    )
    .bind(until)
    .bind(LATEST_COMMIT)
    .execute(&mut *connection)
    .await?;
    sqlx::query("UPDATE ledger_reconciled SET reconciled_to = greatest(reconciled_to, $1)")
        .bind(until)
        .execute(&mut *connection)
        .await?;
    sqlx::query(
        "DELETE FROM ledger_orphans o
         WHERE EXISTS (SELECT FROM ledger_charges c WHERE c.request_id = o.request_id AND c.reason <> 'execution')
             OR EXISTS (SELECT FROM ledger_unpriced u WHERE u.request_id = o.request_id)",
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// An execution of an orphan.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct OrphanExecution {
    pub(crate) request_id: String,
    pub(crate) sender: String,
    pub(crate) sequence: i64,
    pub(crate) record: String,
}

/// The executions, in the order of attempts, of up to `limit` orphans: their last one has been here since `since`; there
/// is a price, or nothing to be priced; and their gateway, where it is known, has not been heard since then, or has
/// reported requests received so long after the last execution that it has none of this one in its log.
pub(crate) async fn due(
    connection: &mut PgConnection,
    since: DateTime<Utc>,
    grace: TimeDelta,
    limit: i64,
) -> Result<Vec<OrphanExecution>, sqlx::Error> {
    sqlx::query_as(
        "WITH known AS (
             SELECT o.request_id, max(e.stored_at) AS stored_at, max(e.finished_at) AS finished_at,
                 max(e.record -> 'data' -> 'billing' ->> 'gateway') AS gateway, max(e.version_id) AS version_id,
                 coalesce(max((e.record -> 'data' -> 'billing' ->> 'received_at')::timestamptz), min(e.started_at))
                     AS received_at,
                 sum(e.generated_tokens) > 0
                     OR (array_agg(e.outcome <> 'error' AND e.cached_tokens + e.computed_tokens > 0
                         ORDER BY e.attempt DESC, e.started_at DESC))[1] AS is_charged
             FROM ledger_orphans o JOIN ledger_executions e USING (request_id)
             WHERE e.outcome <> 'refused' GROUP BY 1
         ), due AS (
             SELECT k.request_id FROM known k LEFT JOIN ledger_senders s ON s.sender = k.gateway
             WHERE k.stored_at <= $1
                 AND (NOT k.is_charged OR EXISTS (SELECT FROM price_versions p
                     WHERE p.version_id = k.version_id AND p.effective_from <= k.received_at))
                 AND (s.heard_at IS NULL OR s.heard_at <= $1 OR EXISTS (
                     SELECT FROM ledger_charges c WHERE c.sender = k.gateway AND c.received_at >= k.finished_at + $2))
             ORDER BY k.request_id LIMIT $3
         )
         SELECT e.request_id, e.sender, e.sequence, e.record::text AS record
         FROM due JOIN ledger_executions e USING (request_id)
         WHERE e.outcome <> 'refused' ORDER BY e.request_id, e.attempt, e.started_at",
    )
    .bind(since)
    .bind(grace)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// What is charged of these requests: prompt, cached and generated tokens of all their rows.
pub(crate) async fn charged(
    connection: &mut PgConnection,
    requests: &[String],
) -> Result<Vec<(String, i64, i64, i64)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT request_id, sum(prompt_tokens)::bigint, sum(cached_prompt_tokens)::bigint, sum(generated_tokens)::bigint
         FROM ledger_charges WHERE request_id = ANY($1) GROUP BY 1",
    )
    .bind(requests)
    .fetch_all(connection)
    .await
}

/// Forgets requests that are charged now.
pub(crate) async fn forget(connection: &mut PgConnection, requests: &[String]) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM ledger_orphans WHERE request_id = ANY($1)")
        .bind(requests)
        .execute(connection)
        .await?;
    Ok(())
}
