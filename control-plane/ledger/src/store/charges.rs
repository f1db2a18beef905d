//! Charges, the queue of unpriced records, and the usage roll-up: one statement for all three, so that they cannot
//! disagree. A record whose request was charged from executions before it came is a correction (`corrections.rs`).
//!
//! Money is computed by Postgres' numeric type, which multiplies without rounding:
//! tokens × price per million × 0.000001.

mod corrections;

use std::collections::HashSet;
use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row};
use weir_schemas::records::{ChargeData, CloudEvent};

use super::{count, text, wire_name};

/// A record on its way to a charge.
#[derive(Debug, Clone)]
pub(crate) struct Charge<'a> {
    pub(crate) sender: &'a str,
    pub(crate) sequence: i64,
    pub(crate) event: &'a CloudEvent<ChargeData>,
    /// The record as received.
    pub(crate) record: &'a str,
    /// The same (tenant, Idempotency-Key) was charged before.
    pub(crate) is_repeat: bool,
}

/// What became of a batch's charges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Rows written to `ledger_charges`.
    pub(crate) charged: i64,
    /// Rows without a price.
    pub(crate) unpriced: i64,
}

/// When the charges come to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// For the first time: usage is counted, and what has no price is queued.
    First,
    /// From the queue: usage was counted; what has a price now is charged and leaves the queue.
    Queued,
    /// Made by the ledger from executions, for want of a record; what has no price must not come.
    FromExecutions,
}

/// Writes charge rows for what has a price or needs none, queues the rest, and adds to the usage roll-up.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    charges: &[Charge<'_>],
    arrival: Arrival,
    now: DateTime<Utc>,
) -> Result<Settled, sqlx::Error> {
    if charges.is_empty() {
        return Ok(Settled::default());
    }
    let charged = match arrival {
        Arrival::First | Arrival::FromExecutions => charged_before(connection, charges).await?,
        Arrival::Queued => HashSet::new(),
    };
    if charged.is_empty() {
        return run(connection, &CHARGE, charges, arrival, now).await;
    }
    let (late, fresh): (Vec<Charge<'_>>, Vec<Charge<'_>>) =
        charges.iter().cloned().partition(|charge| charged.contains(&charge.event.id));
    let corrected = run(connection, &corrections::CORRECT, &late, arrival, now).await?;
    let settled = match fresh.is_empty() {
        true => Settled::default(),
        false => run(connection, &CHARGE, &fresh, arrival, now).await?,
    };
    Ok(Settled { charged: corrected.charged + settled.charged, unpriced: settled.unpriced })
}

/// The requests among these that were charged from executions: no record of a gateway comes a second time to here.
async fn charged_before(
    connection: &mut PgConnection,
    charges: &[Charge<'_>],
) -> Result<HashSet<String>, sqlx::Error> {
    let requests: Vec<&str> = charges.iter().map(|charge| charge.event.id.as_str()).collect();
    let charged: Vec<String> =
        sqlx::query_scalar("SELECT request_id FROM ledger_charges WHERE request_id = ANY($1) AND entry = 0")
            .bind(requests)
            .fetch_all(connection)
            .await?;
    Ok(charged.into_iter().collect())
}

/// Runs a statement over the charges' columns, which `INCOMING` names.
async fn run(
    connection: &mut PgConnection,
    statement: &str,
    charges: &[Charge<'_>],
    arrival: Arrival,
    now: DateTime<Utc>,
) -> Result<Settled, sqlx::Error> {
    let column = |value: fn(&ChargeData) -> i64| -> Vec<i64> {
        charges.iter().map(|charge| value(&charge.event.data)).collect()
    };
    let words = |value: fn(&ChargeData) -> String| -> Vec<String> {
        charges.iter().map(|charge| value(&charge.event.data)).collect()
    };
    let times = |value: fn(&ChargeData) -> DateTime<Utc>| -> Vec<DateTime<Utc>> {
        charges.iter().map(|charge| value(&charge.event.data)).collect()
    };
    let optional = |value: fn(&ChargeData) -> Option<String>| -> Vec<Option<String>> {
        charges.iter().map(|charge| value(&charge.event.data)).collect()
    };
    let row = sqlx::query(statement)
        .bind(now)
        .bind(arrival != Arrival::Queued)
        .bind(charges.iter().map(|charge| charge.event.id.clone()).collect::<Vec<_>>())
        .bind(charges.iter().map(|charge| reason(charge, arrival)).collect::<Vec<_>>())
        .bind(charges.iter().map(|charge| charge.sender.to_owned()).collect::<Vec<_>>())
        .bind(charges.iter().map(|charge| charge.sequence).collect::<Vec<_>>())
        .bind(words(|data| data.tenant.to_string()))
        .bind(words(|data| data.key.to_string()))
        .bind(words(|data| text(data.project.as_deref().unwrap_or_default())))
        .bind(optional(|data| data.client_request_id.as_deref().map(text)))
        .bind(optional(|data| data.idempotency_key_hash.as_deref().map(text)))
        .bind(words(|data| text(&data.requested_model)))
        .bind(words(|data| data.version.to_string()))
        .bind(words(|data| wire_name(data.tier)))
        .bind(words(|data| wire_name(data.finish_reason)))
        .bind(column(|data| count(data.prompt_tokens)))
        .bind(column(|data| count(data.cached_prompt_tokens)))
        .bind(column(|data| count(data.generated_tokens)))
        .bind(column(|data| count(data.reasoning_tokens)))
        .bind(times(|data| data.received_at))
        .bind(times(|data| data.finished_at))
        .bind(charges.iter().map(|charge| charge.event.data.recovered).collect::<Vec<_>>())
        .bind(charges.iter().map(is_chargeable).collect::<Vec<_>>())
        .bind(charges.iter().map(|charge| charge.record.to_owned()).collect::<Vec<_>>())
        .fetch_one(connection)
        .await?;
    Ok(Settled { charged: row.try_get("charged")?, unpriced: row.try_get("unpriced")? })
}

fn reason(charge: &Charge<'_>, arrival: Arrival) -> String {
    match (arrival, charge.is_repeat) {
        (Arrival::FromExecutions, _) => "execution",
        (Arrival::First | Arrival::Queued, true) => "idempotent_repeat",
        (Arrival::First | Arrival::Queued, false) => "request",
    }
    .to_owned()
}

fn is_chargeable(charge: &Charge<'_>) -> bool {
    let data = &charge.event.data;
    !charge.is_repeat && data.finish_reason.is_chargeable(data.generated_tokens)
}

/// How many records wait for a price.
pub(crate) async fn count_unpriced(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT count(*) FROM ledger_unpriced").fetch_one(connection).await
}

/// A queued record for which a price exists.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Queued {
    pub(crate) sender: String,
    pub(crate) sequence: i64,
    pub(crate) record: String,
}

/// Takes up to `limit` queued records that have a price now, locked against another pricing pass.
pub(crate) async fn take_priceable(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<Queued>, sqlx::Error> {
    sqlx::query_as(
        "SELECT sender, sequence, record::text AS record FROM ledger_unpriced u
         WHERE EXISTS (SELECT FROM price_versions p
                       WHERE p.version_id = u.version_id AND p.effective_from <= u.received_at)
         ORDER BY received_at, request_id LIMIT $1
         FOR UPDATE OF u SKIP LOCKED",
    )
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// The charges as rows.
const INCOMING: &str = "
WITH incoming AS (
    SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::bigint[],
        $18::bigint[], $19::bigint[], $20::timestamptz[], $21::timestamptz[], $22::boolean[], $23::boolean[],
        $24::text[])
    AS t(request_id, reason, sender, sequence, tenant_id, key_id, project, client_request_id, idempotency_key_hash,
        requested_model, version_id, tier, finish_reason, prompt_tokens, cached_prompt_tokens, generated_tokens,
        reasoning_tokens, received_at, finished_at, recovered, chargeable, record)
)";

/// The price in force at a moment: the greatest `effective_from` not after it, then the greatest position.
const PRICED: &str = ", priced AS (
    SELECT i.*, p.position AS price_position, coalesce(p.currency, '') AS currency,
        p.prompt_per_million, p.cached_prompt_per_million, p.generated_per_million,
        i.chargeable AND i.prompt_tokens + i.generated_tokens > 0 AND p.position IS NULL AS waits
    FROM incoming i LEFT JOIN LATERAL (
        SELECT v.* FROM price_versions v
        WHERE i.chargeable AND i.prompt_tokens + i.generated_tokens > 0
            AND v.version_id = i.version_id AND v.effective_from <= i.received_at
        ORDER BY v.effective_from DESC, v.position DESC LIMIT 1
    ) p ON true
)";

/// What each costs.
const SETTLED: &str = ", settled AS MATERIALIZED (
    SELECT *, a.prompt + a.cached + a.generated AS amount
    FROM priced CROSS JOIN LATERAL (SELECT
        trim_scale(coalesce((prompt_tokens - cached_prompt_tokens) * prompt_per_million * 0.000001, 0)) AS prompt,
        trim_scale(coalesce(cached_prompt_tokens * cached_prompt_per_million * 0.000001, 0)) AS cached,
        trim_scale(coalesce(generated_tokens * generated_per_million * 0.000001, 0)) AS generated) a
)";

static CHARGE: LazyLock<String> =
    LazyLock::new(|| format!("{INCOMING}{PRICED}{SETTLED}{WRITTEN}{ROLLED_UP}{COUNTED}"));

const WRITTEN: &str = ", charged AS (
    INSERT INTO ledger_charges (request_id, reason, sender, sequence, tenant_id, key_id, project, client_request_id,
        idempotency_key_hash, requested_model, version_id, tier, finish_reason, prompt_tokens, cached_prompt_tokens,
        generated_tokens, reasoning_tokens, received_at, finished_at, recovered, chargeable, price_position, currency,
        prompt_per_million, cached_prompt_per_million, generated_per_million, prompt_amount, cached_prompt_amount,
        generated_amount, amount, charged_at, record)
    SELECT request_id, reason, sender, sequence, tenant_id, key_id, project, client_request_id,
        idempotency_key_hash, requested_model, version_id, tier, finish_reason, prompt_tokens, cached_prompt_tokens,
        generated_tokens, reasoning_tokens, received_at, finished_at, recovered, chargeable, price_position, currency,
        prompt_per_million, cached_prompt_per_million, generated_per_million, prompt, cached, generated, amount, $1,
        record::json
    FROM settled WHERE NOT waits
), queued AS (
    INSERT INTO ledger_unpriced (request_id, sender, sequence, tenant_id, version_id, received_at, stored_at, record)
    SELECT request_id, sender, sequence, tenant_id, version_id, received_at, $1, record::json
    FROM settled WHERE waits AND $2
), unqueued AS (
    DELETE FROM ledger_unpriced u USING settled s WHERE u.request_id = s.request_id AND NOT s.waits AND NOT $2
), changes AS (
    SELECT s.*, counted AS requests, counted * prompt_tokens AS input, counted * cached_prompt_tokens AS cached_input,
        counted * generated_tokens AS output
    FROM settled s CROSS JOIN (SELECT CASE WHEN $2 THEN 1 ELSE 0 END AS counted) c WHERE $2 OR NOT waits
)";

/// Adds up the rows of `changes`, the last part before it. Roll-up rows are written in key order, so that two senders
/// never wait for each other in a circle.
const ROLLED_UP: &str = ", rolled_up AS (
    INSERT INTO ledger_usage_minutes AS m (tenant_id, bucket_start, key_id, project, requested_model, version_id, tier,
        currency, requests, input_tokens, input_cached_tokens, output_tokens, amount)
    SELECT tenant_id, date_trunc('minute', received_at), key_id, project, requested_model, version_id, tier, currency,
        sum(requests), sum(input), sum(cached_input), sum(output), sum(amount)
    FROM changes
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (tenant_id, bucket_start, key_id, project, requested_model, version_id, tier, currency) DO UPDATE SET
        requests = m.requests + excluded.requests,
        input_tokens = m.input_tokens + excluded.input_tokens,
        input_cached_tokens = m.input_cached_tokens + excluded.input_cached_tokens,
        output_tokens = m.output_tokens + excluded.output_tokens,
        amount = m.amount + excluded.amount
)";

const COUNTED: &str = "
SELECT count(*) FILTER (WHERE NOT waits) AS charged, count(*) FILTER (WHERE waits) AS unpriced FROM settled";
