//! Whether rows say what the records say that they were made from.

use sqlx::PgConnection;

use super::findings::find;
use super::{Difference, Findings, Range};

/// The net of a request's rows must be one request, under the labels and with the tokens of its last record. A charge
/// from executions keeps the record that the ledger made of them; that this is right is for `executions.rs`.
pub(super) async fn charges(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(connection, CHARGES, range).await
}

const CHARGES: &str = "
WITH asked AS (
    SELECT request_id FROM ledger_charges WHERE entry = 0 AND received_at >= $1 AND finished_at < $2
), net AS (
    SELECT request_id, tenant_id, key_id, project, requested_model, version_id, tier, received_at, chargeable,
        currency, price_position, sum(requests) AS requests, sum(prompt_tokens) AS prompt,
        sum(cached_prompt_tokens) AS cached, sum(generated_tokens) AS generated, sum(reasoning_tokens) AS reasoning
    FROM ledger_charges JOIN asked USING (request_id)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
    HAVING (sum(requests), sum(prompt_tokens), sum(cached_prompt_tokens), sum(generated_tokens),
            sum(reasoning_tokens), sum(amount)) <> (0, 0, 0, 0, 0, 0)
), one AS (
    SELECT *, count(*) OVER (PARTITION BY request_id) AS groups FROM net
), last AS (
    SELECT DISTINCT ON (request_id) c.* FROM ledger_charges c JOIN asked USING (request_id)
    ORDER BY request_id, entry DESC
)
SELECT l.request_id AS subject, 'the charge is not what its record says' AS what,
    concat_ws(' ', r.tenant, r.key, r.prompt_tokens, r.cached_prompt_tokens, r.generated_tokens, r.finish_reason) AS left,
    concat_ws(' ', l.tenant_id, l.key_id, o.prompt, o.cached, o.generated, l.finish_reason) AS right
FROM last l LEFT JOIN one o USING (request_id)
CROSS JOIN LATERAL json_to_record(l.record -> 'data') AS r(tenant text, key text, project text, client_request_id text,
    idempotency_key_hash text, requested_model text, version text, tier text, prompt_tokens bigint,
    cached_prompt_tokens bigint, generated_tokens bigint, reasoning_tokens bigint, finish_reason text,
    received_at timestamptz, finished_at timestamptz, recovered boolean)
WHERE (o.groups, o.requests, o.prompt, o.cached, o.generated, o.reasoning)
        IS DISTINCT FROM (1, 1, r.prompt_tokens, r.cached_prompt_tokens, r.generated_tokens, r.reasoning_tokens)
    OR (o.tenant_id, o.key_id, o.version_id, o.tier) IS DISTINCT FROM (r.tenant, r.key, r.version, r.tier)
    OR o.project <> left(coalesce(r.project, ''), 256) OR o.requested_model <> left(r.requested_model, 256)
    OR l.client_request_id IS DISTINCT FROM left(r.client_request_id, 256)
    OR l.idempotency_key_hash IS DISTINCT FROM left(r.idempotency_key_hash, 256)
    OR l.finish_reason <> r.finish_reason OR l.recovered <> coalesce(r.recovered, false)
    OR o.received_at - r.received_at NOT BETWEEN interval '-1 microsecond' AND interval '1 microsecond'
    OR l.finished_at - r.finished_at NOT BETWEEN interval '-1 microsecond' AND interval '1 microsecond'
    OR l.record ->> 'id' <> l.request_id OR l.record ->> 'source' <> l.sender
    OR l.reason = 'idempotent_repeat' AND o.chargeable IS TRUE
    OR l.reason <> 'execution' AND (l.entry > 0) <> (l.reason = 'correction')
    -- How it ended decides whether it is charged; only a repeat of an answered key is let off.
    OR (o.chargeable <> (r.finish_reason IN ('stop', 'length', 'tool_calls', 'cancelled', 'deadline', 'replica_lost')
                OR r.finish_reason = 'error' AND r.generated_tokens > 0)
        AND (o.chargeable OR NOT EXISTS (
            SELECT FROM ledger_charges k WHERE k.tenant_id = l.tenant_id AND k.request_id <> l.request_id
                AND k.idempotency_key_hash = l.idempotency_key_hash)
            AND NOT EXISTS (
            SELECT FROM ledger_unpriced k WHERE k.tenant_id = l.tenant_id
                AND left(k.record -> 'data' ->> 'idempotency_key_hash', 256) = l.idempotency_key_hash)))";

/// Executions that do not say what their records say.
pub(super) async fn executions(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "SELECT e.request_id AS subject, 'the execution is not what its record says' AS what,
             concat_ws(' ', r.tenant, r.prompt_tokens, r.cached_tokens, r.computed_tokens, r.generated_tokens, r.outcome) AS left,
             concat_ws(' ', e.tenant_id, e.prompt_tokens, e.cached_tokens, e.computed_tokens, e.generated_tokens, e.outcome)
                 AS right
         FROM ledger_executions e
         CROSS JOIN LATERAL json_to_record(record -> 'data') AS r(request text, attempt bigint, tenant text, version text,
             worker text, instance text, prompt_tokens bigint, cached_tokens bigint, computed_tokens bigint,
             generated_tokens bigint, device_us bigint, outcome text, started_at timestamptz, finished_at timestamptz,
             recovered boolean)
         WHERE e.started_at >= $1 AND e.finished_at < $2
           AND ((e.request_id, e.attempt, e.tenant_id, e.version_id, e.worker_id, e.instance_id, e.prompt_tokens,
                   e.cached_tokens, e.computed_tokens, e.generated_tokens, e.device_us, e.outcome, e.recovered)
                 IS DISTINCT FROM (r.request, r.attempt, r.tenant, r.version, r.worker, r.instance, r.prompt_tokens,
                   r.cached_tokens, r.computed_tokens, r.generated_tokens, r.device_us, r.outcome,
                   coalesce(r.recovered, false))
             OR e.started_at - r.started_at NOT BETWEEN interval '-1 microsecond' AND interval '1 microsecond'
             OR e.finished_at - r.finished_at NOT BETWEEN interval '-1 microsecond' AND interval '1 microsecond'
             OR e.record ->> 'source' <> e.sender)",
        range,
    )
    .await
}

/// Records in the queue for a price whose columns were altered.
pub(super) async fn unpriced(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "SELECT u.request_id AS subject, 'a record without a price is not what it was' AS what,
             concat_ws(' ', r.tenant, r.version, r.received_at) AS left,
             concat_ws(' ', u.tenant_id, u.version_id, u.received_at) AS right
         FROM ledger_unpriced u
         CROSS JOIN LATERAL json_to_record(record -> 'data') AS r(tenant text, version text, received_at timestamptz)
         WHERE u.received_at >= $1 AND u.received_at < $2
           AND ((u.tenant_id, u.version_id, u.request_id, u.sender)
                   IS DISTINCT FROM (r.tenant, r.version, u.record ->> 'id', u.record ->> 'source')
             OR u.received_at - r.received_at NOT BETWEEN interval '-1 microsecond' AND interval '1 microsecond')",
        range,
    )
    .await
}
