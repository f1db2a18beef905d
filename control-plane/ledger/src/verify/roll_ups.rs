//! Whether roll-ups are the sums of the rows that they were made from.

use sqlx::PgConnection;

use super::findings::find;
use super::{Difference, Findings, Range};

/// Requests and tokens under each label. Not by currency: what is priced late was counted before it had one.
pub(super) async fn usage(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH rows AS (
             SELECT tenant_id, date_trunc('minute', received_at) AS minute, key_id, project, requested_model, version_id,
                 tier, requests, prompt_tokens, cached_prompt_tokens, generated_tokens
             FROM ledger_charges
             UNION ALL
             SELECT u.tenant_id, date_trunc('minute', u.received_at), r.key, left(coalesce(r.project, ''), 256),
                 left(r.requested_model, 256), u.version_id, r.tier, 1, r.prompt_tokens, r.cached_prompt_tokens,
                 r.generated_tokens
             FROM ledger_unpriced u CROSS JOIN LATERAL json_to_record(record -> 'data') AS r(key text, project text,
                 requested_model text, tier text, prompt_tokens bigint, cached_prompt_tokens bigint,
                 generated_tokens bigint)
         ), summed AS (
             SELECT tenant_id, minute, key_id, project, requested_model, version_id, tier, sum(requests) AS requests,
                 sum(prompt_tokens) AS input, sum(cached_prompt_tokens) AS cached, sum(generated_tokens) AS output
             FROM rows WHERE minute >= date_trunc('minute', $1) AND minute < date_trunc('minute', $2)
             GROUP BY 1, 2, 3, 4, 5, 6, 7
         ), rolled AS (
             SELECT tenant_id, bucket_start AS minute, key_id, project, requested_model, version_id, tier,
                 sum(requests) AS requests, sum(input_tokens) AS input, sum(input_cached_tokens) AS cached,
                 sum(output_tokens) AS output
             FROM ledger_usage_minutes
             WHERE bucket_start >= date_trunc('minute', $1) AND bucket_start < date_trunc('minute', $2)
             GROUP BY 1, 2, 3, 4, 5, 6, 7
         )
         SELECT concat_ws(' ', tenant_id, minute, key_id, project, requested_model, version_id, tier) AS subject,
             'the usage roll-up is not the sum of its rows' AS what,
             concat_ws(' ', s.requests, s.input, s.cached, s.output) AS left,
             concat_ws(' ', r.requests, r.input, r.cached, r.output) AS right
         FROM summed s FULL JOIN rolled r
             USING (tenant_id, minute, key_id, project, requested_model, version_id, tier)
         WHERE (coalesce(s.requests, 0), coalesce(s.input, 0), coalesce(s.cached, 0), coalesce(s.output, 0))
             <> (coalesce(r.requests, 0), coalesce(r.input, 0), coalesce(r.cached, 0), coalesce(r.output, 0))",
        range,
    )
    .await
}

/// Money under each label and currency.
pub(super) async fn amounts(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH summed AS (
             SELECT tenant_id, date_trunc('minute', received_at) AS minute, key_id, project, requested_model, version_id,
                 tier, currency, sum(amount) AS amount
             FROM ledger_charges
             WHERE date_trunc('minute', received_at) >= date_trunc('minute', $1)
                 AND date_trunc('minute', received_at) < date_trunc('minute', $2)
             GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
         ), rolled AS (
             SELECT tenant_id, bucket_start AS minute, key_id, project, requested_model, version_id, tier, currency, amount
             FROM ledger_usage_minutes
             WHERE bucket_start >= date_trunc('minute', $1) AND bucket_start < date_trunc('minute', $2)
         )
         SELECT concat_ws(' ', tenant_id, minute, key_id, project, requested_model, version_id, tier) AS subject,
             'the cost roll-up is not the sum of its rows' AS what,
             concat_ws(' ', coalesce(s.amount, 0), currency) AS left,
             concat_ws(' ', coalesce(r.amount, 0), currency) AS right
         FROM summed s FULL JOIN rolled r
             USING (tenant_id, minute, key_id, project, requested_model, version_id, tier, currency)
         WHERE coalesce(s.amount, 0) <> coalesce(r.amount, 0)",
        range,
    )
    .await
}

/// What gateways reported of latencies, and what they refused. A charge from executions knows no latency and is not in
/// it until its close comes.
pub(super) async fn goodput(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH reported AS (
             SELECT DISTINCT ON (sender, sequence, request_id) received_at, record FROM ledger_charges WHERE reason <> 'execution'
                 AND received_at >= date_trunc('minute', $1) AND received_at < date_trunc('minute', $2)
             ORDER BY sender, sequence, request_id, entry DESC
         ), records AS (
             SELECT received_at, record FROM reported
             UNION ALL
             SELECT received_at, record FROM ledger_unpriced
             WHERE received_at >= date_trunc('minute', $1) AND received_at < date_trunc('minute', $2)
         ), rows AS (
             SELECT r.tenant, date_trunc('minute', records.received_at) AS minute, left(r.requested_model, 256) AS model, r.tier,
                 1 AS finished, 0::bigint AS rejected, coalesce(s.ttft_met, false) AS ttft, s.itl_met IS TRUE AS itl,
                 coalesce(s.ttft_met, false) AND s.itl_met IS NOT FALSE AS both_met, r.generated_tokens AS output
             FROM records
             CROSS JOIN LATERAL json_to_record(record -> 'data') AS r(tenant text, requested_model text,
                 tier text, generated_tokens bigint, slo json)
             CROSS JOIN LATERAL json_to_record(r.slo) AS s(ttft_met boolean, itl_met boolean)
             UNION ALL
             SELECT tenant_id, date_trunc('minute', minute), requested_model, '', 0, count, false, false, false, 0
             FROM ledger_rejections
             WHERE minute >= date_trunc('minute', $1) AND minute < date_trunc('minute', $2)
         ), summed AS (
             SELECT tenant AS tenant_id, minute, model AS requested_model, tier, sum(finished) AS finished,
                 sum(rejected) AS rejected, count(*) FILTER (WHERE ttft) AS ttft_met, count(*) FILTER (WHERE itl) AS itl_met,
                 count(*) FILTER (WHERE both_met) AS both_met, sum(output) AS output,
                 coalesce(sum(output) FILTER (WHERE both_met), 0) AS output_met
             FROM rows GROUP BY 1, 2, 3, 4
         ), rolled AS (
             SELECT *, bucket_start AS minute FROM ledger_goodput_minutes
             WHERE bucket_start >= date_trunc('minute', $1) AND bucket_start < date_trunc('minute', $2)
         )
         SELECT concat_ws(' ', tenant_id, minute, requested_model, tier) AS subject,
             'the goodput roll-up is not the sum of its records' AS what,
             concat_ws(' ', s.finished, s.rejected, s.ttft_met, s.itl_met, s.both_met, s.output, s.output_met) AS left,
             concat_ws(' ', r.finished, r.rejected, r.ttft_met, r.itl_met, r.both_met, r.output_tokens,
                 r.output_tokens_both_met) AS right
         FROM summed s FULL JOIN rolled r USING (tenant_id, minute, requested_model, tier)
         WHERE (s.finished, s.rejected, s.ttft_met, s.itl_met, s.both_met, s.output, s.output_met)
             IS DISTINCT FROM (r.finished, r.rejected, r.ttft_met, r.itl_met, r.both_met, r.output_tokens,
                 r.output_tokens_both_met)",
        range,
    )
    .await
}
