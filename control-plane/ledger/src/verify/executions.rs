//! What gateways charged against what workers counted.
//!
//! Exact where both sides were closed by the engine's own count. Where one was closed from what was last known, the
//! charge stands, is listed apart, and may differ by [`bound`] at most: a gateway or worker that died (`recovered`)
//! knows what it had noted, a gateway whose worker was lost (`replica_lost`), or that went on at another one, what
//! had arrived.

use sqlx::PgConnection;
use weir_schemas::records::PROGRESS_INTERVAL;

use super::findings::find;
use super::{Difference, Findings, Range};

/// Intervals: one is not noted yet when a process dies, and for up to another the other side goes on before it
/// notices, or the note was late on a busy machine.
const UNKNOWN_INTERVALS: u128 = 2;
/// A short sequence's mean rate says little about its next tokens.
const FEW_TOKENS: i64 = 8;

/// Differences that nothing excuses.
pub(super) async fn differences(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(connection, &statement("NOT excused"), range).await
}

/// Differences within what a crash may cost.
pub(super) async fn recovered(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(connection, &statement("excused"), range).await
}

fn statement(which: &str) -> String {
    format!(
        "{COMPARED}, judged AS (
             SELECT *, {} AS excused FROM differing
         )
         SELECT subject, what, left_side AS left, right_side AS right FROM judged WHERE {which}",
        excused()
    )
}

/// Tokens that a sequence makes in the time that is not known of, at the mean rate of the side that has more of it. The
/// prompt may be missing only from a side that knows of no token; what the cache gave is known at the end only.
fn excused() -> String {
    let unknown_us = PROGRESS_INTERVAL.as_micros() * UNKNOWN_INTERVALS;
    format!(
        "is_inexact AND NOT is_unbalanced
         AND abs(charged_generated - executed_generated) <= {FEW_TOKENS} + CASE WHEN decode_us > 0 THEN
             ceil(greatest(charged_generated, executed_generated)::numeric * {unknown_us} / decode_us) ELSE 0 END
         AND (charged_prompt = executed_prompt
             OR least(charged_generated, executed_generated) = 0
                 AND greatest(charged_prompt, executed_prompt) <= whole_prompt)"
    )
}

/// Prompt tokens are charged once however many attempts there were: the whole prompt of the first, or before the first
/// token as far as the last one computed it or took it from cache. Cache hits are the last attempt's, unless several
/// made tokens: then the gateway alone knows. A refused attempt is none.
const COMPARED: &str = "
WITH charged AS (
    SELECT request_id, min(received_at) AS received_at, max(finished_at) AS finished_at,
        (array_agg(recovered ORDER BY entry DESC))[1] AS recovered,
        (array_agg(finish_reason ORDER BY entry DESC))[1] AS finish_reason,
        min(tenant_id) AS tenant_id, min(version_id) AS version_id,
        sum(prompt_tokens) AS prompt, sum(cached_prompt_tokens) AS cached, sum(generated_tokens) AS generated
    FROM ledger_charges GROUP BY 1
    UNION ALL
    SELECT request_id, u.received_at, r.finished_at, coalesce(r.recovered, false), r.finish_reason,
        tenant_id, version_id, r.prompt_tokens, r.cached_prompt_tokens, r.generated_tokens
    FROM ledger_unpriced u CROSS JOIN LATERAL json_to_record(record -> 'data') AS r(finished_at timestamptz,
        recovered boolean, finish_reason text, prompt_tokens bigint, cached_prompt_tokens bigint,
        generated_tokens bigint)
), executed AS (
    SELECT request_id, min(started_at) AS started_at, max(finished_at) AS finished_at,
        bool_or(recovered) AS recovered, min(tenant_id) AS tenant_id, max(tenant_id) AS other_tenant,
        min(version_id) AS version_id, max(version_id) AS other_version,
        count(*) FILTER (WHERE generated_tokens > 0) AS fruitful, count(*) AS attempts,
        sum(generated_tokens) AS generated,
        (array_agg(cached_tokens ORDER BY attempt DESC, started_at DESC))[1] AS cached,
        (array_agg(prompt_tokens ORDER BY attempt, started_at))[1] AS prompt,
        (array_agg(cached_tokens + computed_tokens ORDER BY attempt DESC, started_at DESC))[1] AS reached,
        (array_agg(generated_tokens ORDER BY attempt DESC, started_at DESC))[1] AS last_generated
    FROM ledger_executions WHERE outcome <> 'refused' GROUP BY 1
), compared AS (
    SELECT coalesce(c.request_id, e.request_id) AS subject,
        c.request_id IS NULL AS uncharged, e.request_id IS NULL AS unexecuted,
        coalesce(c.recovered OR e.recovered OR c.finish_reason = 'replica_lost'
            OR e.generated <> e.last_generated, false) AS is_inexact,
        (c.tenant_id, c.version_id, c.tenant_id, c.version_id)
            <> (e.tenant_id, e.version_id, e.other_tenant, e.other_version) AS is_another,
        coalesce(c.prompt, 0) AS charged_prompt, coalesce(c.generated, 0) AS charged_generated,
        CASE WHEN e.generated > 0 THEN e.prompt WHEN c.finish_reason IN ('rejected', 'model_warming') THEN 0
            ELSE coalesce(e.reached, 0) END AS executed_prompt,
        coalesce(e.generated, 0) AS executed_generated, coalesce(e.prompt, 0) AS whole_prompt,
        CASE WHEN coalesce(e.fruitful, 1) <= 1 THEN coalesce(c.cached, 0) ELSE 0 END AS charged_cached,
        CASE WHEN e.generated = 0 AND c.finish_reason IN ('rejected', 'model_warming') THEN 0
            WHEN coalesce(e.fruitful, 1) <= 1 THEN coalesce(e.cached, 0) ELSE 0 END AS executed_cached
    FROM charged c FULL JOIN executed e USING (request_id)
    WHERE coalesce(c.received_at, e.started_at) >= $1 AND coalesce(c.finished_at, e.finished_at) < $2
), differing AS (
    SELECT *, uncharged OR unexecuted OR coalesce(is_another, false) AS is_unbalanced,
        CASE WHEN uncharged THEN 'executed but not charged' WHEN unexecuted THEN 'charged but not executed'
            WHEN is_another THEN 'charged to another than was executed for'
            ELSE 'charged and executed tokens differ' END AS what,
        concat_ws(' ', charged_prompt, charged_cached, charged_generated) AS left_side,
        concat_ws(' ', executed_prompt, executed_cached, executed_generated) AS right_side,
        CASE WHEN charged_generated >= executed_generated THEN
            (SELECT (record -> 'data' ->> 'decode_us')::bigint FROM ledger_charges
             WHERE request_id = subject ORDER BY entry DESC LIMIT 1)
        ELSE
            (SELECT sum((record -> 'data' ->> 'decode_us')::bigint) FROM ledger_executions WHERE request_id = subject)
        END AS decode_us
    FROM compared
    WHERE uncharged OR is_another OR charged_prompt <> executed_prompt OR charged_cached <> executed_cached
        OR charged_generated <> executed_generated
)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_interval_that_gateways_and_workers_note_progress_at() {
        assert!(excused().contains("* 2000000 / decode_us"), "{}", excused());
    }
}
