//! What gateways charged against what workers counted.
//!
//! Exact where both sides were closed by the engine's own count. Where one was closed from what was last known, the
//! charge stands, is listed apart, and may differ by one progress interval's tokens at most: a gateway or worker that
//! died (`recovered`) knows what it had noted, a gateway whose worker was lost (`replica_lost`), or that went on at
//! another one, what had arrived. A lost worker may have lived on, and be further than that by what it computed until it
//! noticed.

use std::time::Duration;

use futures::TryStreamExt;
use sqlx::{FromRow, PgConnection};
use weir_schemas::records::{PROGRESS_INTERVAL, SESSION_LOSS_INTERVAL};

use super::{Difference, Findings, Range};

/// What the two sides of a request disagree on: what nothing excuses, and what a crash may cost.
pub(super) async fn compare(
    connection: &mut PgConnection,
    range: Range,
) -> Result<(Findings<Difference>, Findings<Difference>), sqlx::Error> {
    let (mut differences, mut recovered) = (Findings::default(), Findings::default());
    let mut differing =
        sqlx::query_as::<_, Differing>(DIFFERING).bind(range.from).bind(range.to).fetch(connection);
    while let Some(request) = differing.try_next().await? {
        let findings = if request.is_excused() { &mut recovered } else { &mut differences };
        findings.push(request.into());
    }
    Ok((differences, recovered))
}

/// A request whose charge is not what was executed.
#[derive(Debug, FromRow)]
struct Differing {
    subject: String,
    what: String,
    /// One side is missing altogether, or of another tenant or version.
    is_unbalanced: bool,
    /// One side was closed from what was last known.
    is_inexact: bool,
    /// The gateway was cut off from its worker.
    is_lost: bool,
    #[sqlx(try_from = "(i64, i64, i64, i64)")]
    charged: Side,
    #[sqlx(try_from = "(i64, i64, i64, i64)")]
    executed: Side,
    /// Length of the prompt.
    whole_prompt: i64,
}

/// What one side counted.
#[derive(Debug, Clone, Copy)]
struct Side {
    prompt: i64,
    cached: i64,
    generated: i64,
    /// First token to last token.
    decode_us: i64,
}

impl Differing {
    /// The prompt may be missing only from a side that knows of no token; what the cache gave is known at the end only.
    fn is_excused(&self) -> bool {
        let mut sides = [self.charged, self.executed];
        sides.sort_by_key(|side| side.generated);
        let [fewer, more] = sides;
        let is_prompt_excused = fewer.prompt == more.prompt
            || fewer.generated == 0 && fewer.prompt.max(more.prompt) <= self.whole_prompt;
        let is_worker_ahead = self.is_lost && self.charged.generated <= self.executed.generated;
        let interval = if is_worker_ahead { SESSION_LOSS_INTERVAL } else { PROGRESS_INTERVAL };
        self.is_inexact && !self.is_unbalanced && is_prompt_excused && is_within(interval, fewer, more)
    }
}

/// Whether one such interval may have made the tokens that one side lacks: the sides' last tokens are no further
/// apart, or they are no more than the sequence makes in it at its mean rate, rounded up. A sequence that speeds up
/// when others end is judged by the first, one that takes long for a single token by the second.
fn is_within(interval: Duration, fewer: Side, more: Side) -> bool {
    let interval_us = i128::try_from(interval.as_micros()).unwrap_or(i128::MAX);
    let missing = i128::from(more.generated) - i128::from(fewer.generated);
    let decode_us = i128::from(more.decode_us);
    let apart_us = decode_us - i128::from(fewer.decode_us);
    apart_us <= interval_us || (missing - 1) * decode_us < i128::from(more.generated) * interval_us
}

impl From<(i64, i64, i64, i64)> for Side {
    fn from((prompt, cached, generated, decode_us): (i64, i64, i64, i64)) -> Self {
        Self { prompt, cached, generated, decode_us }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.prompt, self.cached, self.generated)
    }
}

impl From<Differing> for Difference {
    fn from(request: Differing) -> Self {
        let Differing { subject, what, charged, executed, .. } = request;
        Self { subject, what, left: charged.to_string(), right: executed.to_string() }
    }
}

/// Prompt tokens are charged once however many attempts there were: the whole prompt of the first, or before the first
/// token as far as the last one computed it or took it from cache. Cache hits are the last attempt's, unless several
/// made tokens: then the gateway alone knows. A refused attempt is none.
const DIFFERING: &str = "
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
        coalesce(c.finish_reason = 'replica_lost', false) AS is_lost,
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
)
SELECT subject, is_inexact, is_lost, whole_prompt::bigint, uncharged OR unexecuted OR coalesce(is_another, false) AS is_unbalanced,
    CASE WHEN uncharged THEN 'executed but not charged' WHEN unexecuted THEN 'charged but not executed'
        WHEN is_another THEN 'charged to another than was executed for'
        ELSE 'charged and executed tokens differ' END AS what,
    ROW(charged_prompt::bigint, charged_cached::bigint, charged_generated::bigint,
        coalesce((SELECT (record -> 'data' ->> 'decode_us')::bigint
            FROM (SELECT request_id, entry, record FROM ledger_charges
                UNION ALL SELECT request_id, 0, record FROM ledger_unpriced) records
            WHERE request_id = subject ORDER BY entry DESC LIMIT 1), 0)) AS charged,
    ROW(executed_prompt::bigint, executed_cached::bigint, executed_generated::bigint,
        coalesce((SELECT sum((record -> 'data' ->> 'decode_us')::bigint)
            FROM ledger_executions WHERE request_id = subject), 0)::bigint) AS executed
FROM compared
WHERE uncharged OR is_another OR charged_prompt <> executed_prompt OR charged_cached <> executed_cached
    OR charged_generated <> executed_generated
ORDER BY subject";

#[cfg(test)]
mod tests {
    use super::*;

    fn side(generated: i64, decode_ms: i64) -> Side {
        Side { prompt: 9, cached: 0, generated, decode_us: decode_ms * 1000 }
    }

    #[test]
    fn one_interval_is_a_second_of_time_or_the_mean_rate_s_tokens() {
        for (fewer, more, expected) in [
            // Nothing was known of it.
            (side(0, 0), side(30, 1_000), true),
            (side(0, 0), side(30, 1_001), true),
            (side(0, 0), side(31, 1_034), false),
            // Twenty tokens a second.
            (side(100, 5_000), side(120, 6_000), true),
            (side(100, 5_000), side(121, 6_050), false),
            // Faster at its end; slower than a token a second.
            (side(100, 5_000), side(140, 6_000), true),
            (side(2, 3_000), side(3, 6_000), true),
            (side(2, 3_000), side(4, 9_000), false),
        ] {
            assert_eq!(is_within(PROGRESS_INTERVAL, fewer, more), expected, "{fewer:?} {more:?}");
        }
    }
}
