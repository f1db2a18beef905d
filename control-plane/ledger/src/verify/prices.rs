//! Whether amounts are price × tokens, at the price that was in force.

use sqlx::PgConnection;

use super::findings::find;
use super::{Difference, Findings, Range};

/// Rows whose amounts are not their price × their tokens; of a correction both are differences, at one price.
pub(super) async fn amounts(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "SELECT request_id AS subject, 'the amounts are not price times tokens' AS what,
             concat_ws(' ', e.prompt, e.cached, e.generated) AS left,
             concat_ws(' ', prompt_amount, cached_prompt_amount, generated_amount, amount) AS right
         FROM ledger_charges
         CROSS JOIN LATERAL (SELECT
             coalesce((prompt_tokens - cached_prompt_tokens) * prompt_per_million * 0.000001, 0) AS prompt,
             coalesce(cached_prompt_tokens * cached_prompt_per_million * 0.000001, 0) AS cached,
             coalesce(generated_tokens * generated_per_million * 0.000001, 0) AS generated) e
         WHERE received_at >= $1 AND finished_at < $2
           AND (prompt_amount, cached_prompt_amount, generated_amount, amount)
               IS DISTINCT FROM (e.prompt, e.cached, e.generated, e.prompt + e.cached + e.generated)",
        range,
    )
    .await
}

/// Rows that name no price although there was something to price, or one that is not in the price book, or one that
/// was not in force when they were charged: a price for a later moment that had come was set before, or it was set
/// only afterwards. The clocks of those who set and who charge may be a minute apart.
pub(super) async fn prices(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "SELECT request_id AS subject, 'the price is not the one that was in force' AS what,
             concat_ws(' ', p.position, p.currency, p.prompt_per_million, p.cached_prompt_per_million,
                 p.generated_per_million) AS left,
             concat_ws(' ', c.price_position, c.currency, c.prompt_per_million, c.cached_prompt_per_million,
                 c.generated_per_million) AS right
         FROM ledger_charges c
         LEFT JOIN price_versions p ON p.position = c.price_position AND p.version_id = c.version_id
             AND p.effective_from <= c.received_at
         -- A correction keeps the price of the row that it corrects.
         CROSS JOIN LATERAL (SELECT min(f.charged_at) AS priced_at FROM ledger_charges f
             WHERE f.request_id = c.request_id AND f.price_position = c.price_position) f
         WHERE received_at >= $1 AND finished_at < $2
           AND CASE WHEN c.chargeable AND (c.prompt_tokens <> 0 OR c.generated_tokens <> 0)
                   OR c.price_position IS NOT NULL
               THEN p.position IS NULL
                   OR (c.currency, c.prompt_per_million, c.cached_prompt_per_million, c.generated_per_million)
                       IS DISTINCT FROM
                      (p.currency, p.prompt_per_million, p.cached_prompt_per_million, p.generated_per_million)
                   OR EXISTS (SELECT FROM price_versions better
                              WHERE better.version_id = c.version_id AND better.effective_from <= c.received_at
                                  AND (better.effective_from, better.position) > (p.effective_from, p.position)
                                  AND (better.position < p.position OR EXISTS (
                                      SELECT FROM events e WHERE e.position = better.position
                                          AND e.recorded_at < priced_at - interval '1 minute')))
                   OR EXISTS (SELECT FROM events e WHERE e.position = p.position
                                  AND e.recorded_at > priced_at + interval '1 minute')
                   OR NOT c.chargeable
               ELSE (c.prompt_per_million, c.cached_prompt_per_million, c.generated_per_million)
                       IS DISTINCT FROM (NULL, NULL, NULL) OR c.currency <> '' END",
        range,
    )
    .await
}
