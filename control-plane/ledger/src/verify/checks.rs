//! The comparisons, one query each.

use sqlx::PgConnection;

use super::{Difference, MAX_LISTED, Range, SequenceGap};

type Found = Result<Vec<Difference>, sqlx::Error>;

/// A difference, and whether one side of it was closed from its last progress.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct AgainstExecution {
    #[sqlx(flatten)]
    pub(super) difference: Difference,
    pub(super) recovered: bool,
}

/// Charges, executions and unpriced records in the range.
pub(super) async fn counts(
    connection: &mut PgConnection,
    range: Range,
) -> Result<(i64, i64, i64), sqlx::Error> {
    sqlx::query_as(
        "SELECT (SELECT count(*) FROM ledger_charges WHERE entry = 0 AND received_at >= $1 AND received_at < $2),
                (SELECT count(*) FROM ledger_executions WHERE started_at >= $1 AND started_at < $2),
                (SELECT count(*) FROM ledger_unpriced WHERE received_at >= $1 AND received_at < $2)",
    )
    .bind(range.from)
    .bind(range.to)
    .fetch_one(connection)
    .await
}

/// Numbers between 1 and the highest of each sender that are not there.
pub(super) async fn gaps(connection: &mut PgConnection) -> Result<Vec<SequenceGap>, sqlx::Error> {
    sqlx::query_as(
        "SELECT sender, previous + 1 AS first, sequence - 1 AS last FROM (
             SELECT sender, sequence, lag(sequence, 1, 0::bigint) OVER (PARTITION BY sender ORDER BY sequence) AS previous
             FROM ledger_sequences) numbered
         WHERE sequence <> previous + 1 ORDER BY 1, 2 LIMIT $1",
    )
    .bind(MAX_LISTED)
    .fetch_all(connection)
    .await
}

/// Sequences that were accepted and whose row is gone.
pub(super) async fn rows_missing(connection: &mut PgConnection) -> Found {
    sqlx::query_as(
        "SELECT coalesce(event_id, sender || '.' || sequence) AS subject, 'a record was accepted but its row is gone' AS what,
                topic AS left, '' AS right
         FROM ledger_sequences s
         WHERE NOT EXISTS (SELECT FROM ledger_charges r WHERE r.sender = s.sender AND r.sequence = s.sequence)
           AND NOT EXISTS (SELECT FROM ledger_unpriced r WHERE r.sender = s.sender AND r.sequence = s.sequence)
           AND NOT EXISTS (SELECT FROM ledger_executions r WHERE r.sender = s.sender AND r.sequence = s.sequence)
           AND NOT EXISTS (SELECT FROM ledger_rejections r WHERE r.sender = s.sender AND r.sequence = s.sequence)
           AND NOT EXISTS (SELECT FROM ledger_dead_letters r WHERE r.sender = s.sender AND r.sequence = s.sequence)
         ORDER BY sender, sequence LIMIT $1",
    )
    .bind(MAX_LISTED)
    .fetch_all(connection)
    .await
}

/// Charges that no accepted record stands behind.
pub(super) async fn charges_without_record(connection: &mut PgConnection) -> Found {
    sqlx::query_as(
        "SELECT request_id AS subject, 'a charge without an accepted record' AS what, sender AS left,
                sequence::text AS right
         FROM ledger_charges c WHERE entry = 0 AND NOT EXISTS (
             SELECT FROM ledger_sequences s
             WHERE s.event_id = c.request_id AND s.sender = c.sender AND s.sequence = c.sequence)
         ORDER BY 1 LIMIT $1",
    )
    .bind(MAX_LISTED)
    .fetch_all(connection)
    .await
}

/// Records that came again under another number, or another record under the same number.
pub(super) async fn duplicates(connection: &mut PgConnection) -> Found {
    listed_dead_letters(connection, true).await
}

/// Records that could not be taken.
pub(super) async fn dead_letters(connection: &mut PgConnection) -> Found {
    listed_dead_letters(connection, false).await
}

async fn listed_dead_letters(connection: &mut PgConnection, duplicates: bool) -> Found {
    sqlx::query_as(
        "SELECT sender || '.' || sequence AS subject, reason AS what, topic AS left, detail AS right
         FROM ledger_dead_letters
         WHERE (reason IN ('duplicate_event', 'sequence_conflict')) = $2
         ORDER BY dead_letter LIMIT $1",
    )
    .bind(MAX_LISTED)
    .bind(duplicates)
    .fetch_all(connection)
    .await
}

/// Charges that do not say what their record says, or whose amount is not price × tokens.
pub(super) async fn altered_charges(connection: &mut PgConnection, range: Range) -> Found {
    sqlx::query_as(
        "SELECT request_id AS subject, 'the charge is not what its record and price give' AS what,
                concat_ws(' ', tenant_id, record_prompt, record_cached, record_generated, expected) AS left,
                concat_ws(' ', tenant_id, prompt_tokens, cached_prompt_tokens, generated_tokens, amount) AS right
         FROM ledger_charges c
         CROSS JOIN LATERAL (SELECT
             (record -> 'data' ->> 'prompt_tokens')::bigint AS record_prompt,
             (record -> 'data' ->> 'cached_prompt_tokens')::bigint AS record_cached,
             (record -> 'data' ->> 'generated_tokens')::bigint AS record_generated,
             record -> 'data' ->> 'tenant' AS record_tenant) r
         CROSS JOIN LATERAL (SELECT
             coalesce((record_prompt - record_cached) * prompt_per_million * 0.000001, 0)
             + coalesce(record_cached * cached_prompt_per_million * 0.000001, 0)
             + coalesce(record_generated * generated_per_million * 0.000001, 0) AS expected) e
         WHERE entry = 0 AND received_at >= $2 AND received_at < $3
           AND (prompt_tokens <> record_prompt OR cached_prompt_tokens <> record_cached
                OR generated_tokens <> record_generated OR tenant_id <> record_tenant OR amount <> expected)
         ORDER BY 1 LIMIT $1",
    )
    .bind(MAX_LISTED)
    .bind(range.from)
    .bind(range.to)
    .fetch_all(connection)
    .await
}

/// The usage roll-up against the rows it was made from.
pub(super) async fn roll_ups(connection: &mut PgConnection, range: Range) -> Found {
    sqlx::query_as(
        "WITH rows AS (
             SELECT tenant_id, date_trunc('minute', received_at) AS minute, sum(prompt_tokens) AS input,
                 sum(cached_prompt_tokens) AS cached, sum(generated_tokens) AS output,
                 count(*) FILTER (WHERE entry = 0) AS requests, sum(amount) AS amount
             FROM (SELECT tenant_id, received_at, prompt_tokens, cached_prompt_tokens, generated_tokens, entry, amount
                   FROM ledger_charges
                   UNION ALL
                   SELECT tenant_id, received_at, (record -> 'data' ->> 'prompt_tokens')::bigint,
                       (record -> 'data' ->> 'cached_prompt_tokens')::bigint,
                       (record -> 'data' ->> 'generated_tokens')::bigint, 0, 0 FROM ledger_unpriced) r
             WHERE received_at >= date_trunc('minute', $2) AND received_at < date_trunc('minute', $3)
             GROUP BY 1, 2
         ), rolled AS (
             SELECT tenant_id, bucket_start AS minute, sum(input_tokens) AS input, sum(input_cached_tokens) AS cached,
                 sum(output_tokens) AS output, sum(requests) AS requests, sum(amount) AS amount
             FROM ledger_usage_minutes
             WHERE bucket_start >= date_trunc('minute', $2) AND bucket_start < date_trunc('minute', $3)
             GROUP BY 1, 2
         )
         SELECT tenant_id || ' ' || minute AS subject, 'the usage roll-up is not the sum of its rows' AS what,
             concat_ws(' ', w.requests, w.input, w.cached, w.output, w.amount) AS left,
             concat_ws(' ', r.requests, r.input, r.cached, r.output, r.amount) AS right
         FROM rows w FULL JOIN rolled r USING (tenant_id, minute)
         WHERE (w.requests, w.input, w.cached, w.output, w.amount)
             IS DISTINCT FROM (r.requests, r.input, r.cached, r.output, r.amount)
         ORDER BY 1 LIMIT $1",
    )
    .bind(MAX_LISTED)
    .bind(range.from)
    .bind(range.to)
    .fetch_all(connection)
    .await
}

/// What the gateways charged against what the workers counted. Prompt tokens are charged once however many attempts
/// there were: the whole prompt of the first, or before the first token as far as the last one computed it or took
/// it from cache. Cache hits are the last attempt's, unless several made tokens: then the gateway alone knows.
pub(super) async fn executions(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Vec<AgainstExecution>, sqlx::Error> {
    sqlx::query_as(
        "WITH charged AS (
             SELECT request_id, received_at, recovered, prompt_tokens AS prompt, cached_prompt_tokens AS cached,
                 generated_tokens AS generated
             FROM ledger_charges WHERE entry = 0
             UNION ALL
             SELECT request_id, received_at, coalesce((record -> 'data' ->> 'recovered')::boolean, false),
                 (record -> 'data' ->> 'prompt_tokens')::bigint, (record -> 'data' ->> 'cached_prompt_tokens')::bigint,
                 (record -> 'data' ->> 'generated_tokens')::bigint
             FROM ledger_unpriced
         ), executed AS (
             SELECT request_id, min(started_at) AS started_at, bool_or(recovered) AS recovered,
                 count(*) FILTER (WHERE generated_tokens > 0) AS fruitful, sum(generated_tokens) AS generated,
                 (array_agg(cached_tokens ORDER BY attempt DESC))[1] AS cached,
                 (array_agg(prompt_tokens ORDER BY attempt))[1] AS prompt,
                 (array_agg(cached_tokens + computed_tokens ORDER BY attempt DESC))[1] AS reached
             FROM ledger_executions WHERE outcome <> 'refused' GROUP BY 1
         ), compared AS (
             SELECT coalesce(c.request_id, e.request_id) AS subject,
                 coalesce(c.recovered, false) OR coalesce(e.recovered, false) AS recovered,
                 coalesce(c.prompt, 0) AS charged_prompt, coalesce(c.generated, 0) AS charged_generated,
                 CASE WHEN e.generated > 0 THEN e.prompt ELSE coalesce(e.reached, 0) END AS executed_prompt,
                 coalesce(e.generated, 0) AS executed_generated,
                 CASE WHEN coalesce(e.fruitful, 1) <= 1 THEN coalesce(c.cached, 0) ELSE 0 END AS charged_cached,
                 CASE WHEN coalesce(e.fruitful, 1) <= 1 THEN coalesce(e.cached, 0) ELSE 0 END AS executed_cached,
                 c.request_id IS NULL AS uncharged
             FROM charged c FULL JOIN executed e USING (request_id)
             WHERE coalesce(c.received_at, e.started_at) >= $2 AND coalesce(c.received_at, e.started_at) < $3
         )
         SELECT subject, recovered,
             CASE WHEN uncharged THEN 'executed but not charged' ELSE 'charged and executed tokens differ' END AS what,
             concat_ws(' ', charged_prompt, charged_cached, charged_generated) AS left,
             concat_ws(' ', executed_prompt, executed_cached, executed_generated) AS right
         FROM compared
         WHERE uncharged OR charged_prompt <> executed_prompt OR charged_cached <> executed_cached
             OR charged_generated <> executed_generated
         ORDER BY 1 LIMIT $1",
    )
    .bind(MAX_LISTED)
    .bind(range.from)
    .bind(range.to)
    .fetch_all(connection)
    .await
}
