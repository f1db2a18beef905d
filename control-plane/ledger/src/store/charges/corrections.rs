//! Corrections: what a record changes about a request that was charged from its executions before it came.
//!
//! The rows so far, negated, and the record's own, summed by everything that makes a difference to roll-ups and
//! prices: in the usual case one row of differences, which may be all zero and then says that the record came; two
//! where the request moves from one set of labels or prices to another. Afterwards the rows of the request sum to
//! what its record says. A price once applied stays: only what was not priced yet is looked up.

use std::sync::LazyLock;

use super::{INCOMING, ROLLED_UP, SETTLED};

pub(super) static CORRECT: LazyLock<String> =
    LazyLock::new(|| format!("{INCOMING}{PRICED_AS_BEFORE}{SETTLED}{WRITTEN}{ROLLED_UP}{COUNTED}"));

const PRICED_AS_BEFORE: &str = ", priced AS (
    SELECT i.*, p.position AS price_position, coalesce(p.currency, '') AS currency,
        p.prompt_per_million, p.cached_prompt_per_million, p.generated_per_million, false AS waits
    FROM incoming i LEFT JOIN LATERAL (
        SELECT v.* FROM price_versions v
        WHERE i.chargeable AND i.prompt_tokens + i.generated_tokens > 0
            AND v.version_id = i.version_id AND v.effective_from <= i.received_at
        ORDER BY v.position = (SELECT c.price_position FROM ledger_charges c
                               WHERE c.request_id = i.request_id AND c.received_at = i.received_at
                                   AND c.price_position IS NOT NULL ORDER BY c.entry DESC LIMIT 1) DESC NULLS LAST,
            v.effective_from DESC, v.position DESC LIMIT 1
    ) p ON true
)";

/// A row is kept where it changes something, or is the record's own.
const WRITTEN: &str = ", parts AS (
    SELECT c.request_id, c.tenant_id, c.key_id, c.project, c.requested_model, c.version_id, c.tier, c.received_at,
        c.chargeable, c.price_position, c.currency, c.prompt_per_million, c.cached_prompt_per_million,
        c.generated_per_million, false AS is_new, -c.requests AS requests, -c.prompt_tokens AS prompt_tokens,
        -c.cached_prompt_tokens AS cached_prompt_tokens, -c.generated_tokens AS generated_tokens,
        -c.reasoning_tokens AS reasoning_tokens, -c.prompt_amount AS prompt, -c.cached_prompt_amount AS cached,
        -c.generated_amount AS generated
    FROM ledger_charges c JOIN incoming i USING (request_id)
    UNION ALL
    SELECT request_id, tenant_id, key_id, project, requested_model, version_id, tier, received_at,
        chargeable, price_position, currency, prompt_per_million, cached_prompt_per_million,
        generated_per_million, true, 1, prompt_tokens,
        cached_prompt_tokens, generated_tokens,
        reasoning_tokens, prompt, cached,
        generated
    FROM settled
), net AS (
    SELECT request_id, tenant_id, key_id, project, requested_model, version_id, tier, received_at,
        chargeable, price_position, currency, prompt_per_million, cached_prompt_per_million, generated_per_million,
        bool_or(is_new) AS is_new, sum(requests) AS requests, sum(prompt_tokens) AS prompt_tokens,
        sum(cached_prompt_tokens) AS cached_prompt_tokens, sum(generated_tokens) AS generated_tokens,
        sum(reasoning_tokens) AS reasoning_tokens, trim_scale(sum(prompt)) AS prompt, trim_scale(sum(cached)) AS cached,
        trim_scale(sum(generated)) AS generated
    FROM parts GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
), corrections AS (
    SELECT n.*, prompt + cached + generated AS amount,
        (SELECT max(entry) FROM ledger_charges c WHERE c.request_id = n.request_id)
            + row_number() OVER (PARTITION BY request_id ORDER BY is_new, received_at, price_position) AS entry
    FROM net n
    WHERE is_new OR (requests, prompt_tokens, cached_prompt_tokens, generated_tokens, reasoning_tokens, prompt, cached,
        generated) <> (0, 0, 0, 0, 0, 0, 0, 0)
), charged AS (
    INSERT INTO ledger_charges (request_id, entry, reason, requests, sender, sequence, tenant_id, key_id, project,
        client_request_id, idempotency_key_hash, requested_model, version_id, tier, finish_reason, prompt_tokens,
        cached_prompt_tokens, generated_tokens, reasoning_tokens, received_at, finished_at, recovered, chargeable,
        price_position, currency, prompt_per_million, cached_prompt_per_million, generated_per_million, prompt_amount,
        cached_prompt_amount, generated_amount, amount, charged_at, record)
    SELECT request_id, c.entry, CASE WHEN s.reason = 'execution' THEN 'execution' ELSE 'correction' END, c.requests,
        s.sender, s.sequence, c.tenant_id, c.key_id, c.project,
        s.client_request_id, s.idempotency_key_hash, c.requested_model, c.version_id, c.tier, s.finish_reason,
        c.prompt_tokens, c.cached_prompt_tokens, c.generated_tokens, c.reasoning_tokens, c.received_at, s.finished_at,
        s.recovered, c.chargeable, c.price_position, c.currency, c.prompt_per_million, c.cached_prompt_per_million,
        c.generated_per_million, c.prompt, c.cached, c.generated, c.amount, $1, s.record::json
    FROM corrections c JOIN settled s USING (request_id) WHERE $2
), changes AS (
    SELECT *, prompt_tokens AS input, cached_prompt_tokens AS cached_input, generated_tokens AS output
    FROM corrections WHERE $2
)";

const COUNTED: &str = "
SELECT count(*) AS charged, 0::bigint AS unpriced FROM settled";
