//! Whether each number that a sender used is there, has its row, and each row its number. A replayed dead letter has
//! its row under the letter's own number, and its event under `replay` (`replay.rs`).

use sqlx::PgConnection;

use super::findings::find;
use super::{Difference, Findings, Range, SequenceGap};

/// Numbers between 1 and the highest of each sender that are not there, where the one after them came before the
/// range's end: what came later may still overtake them.
pub(super) async fn gaps(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<SequenceGap>, sqlx::Error> {
    find(
        connection,
        "WITH numbered AS (
             SELECT sender, sequence, lag(sequence, 1, 0::bigint) OVER (PARTITION BY sender ORDER BY sequence) AS previous
             FROM ledger_sequences WHERE sender <> 'replay'
         ), stored AS (
             SELECT sender, sequence, charged_at AS stored_at FROM ledger_charges
             UNION ALL SELECT sender, sequence, stored_at FROM ledger_unpriced
             UNION ALL SELECT sender, sequence, stored_at FROM ledger_executions
             UNION ALL SELECT sender, sequence, stored_at FROM ledger_rejections
             UNION ALL SELECT sender, sequence, stored_at FROM ledger_dead_letters
         )
         SELECT sender, previous + 1 AS first, sequence - 1 AS last FROM numbered n
         WHERE sequence <> previous + 1 AND NOT EXISTS (
             SELECT FROM stored s WHERE s.sender = n.sender AND s.sequence = n.sequence AND s.stored_at >= $2)",
        range,
    )
    .await
}

/// Watermarks that are not the end of the contiguous part.
pub(super) async fn watermarks(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH ranked AS (
             SELECT sender, sequence, row_number() OVER (PARTITION BY sender ORDER BY sequence) AS rank
             FROM ledger_sequences WHERE sender <> 'replay'
         ), reached AS (
             SELECT sender, coalesce(max(sequence) FILTER (WHERE sequence = rank), 0) AS contiguous
             FROM ranked GROUP BY 1
         )
         SELECT coalesce(s.sender, r.sender) AS subject, 'the watermark is not the end of what was accepted' AS what,
             coalesce(contiguous, 0)::text AS left, coalesce(watermark, 0)::text AS right
         FROM ledger_senders s FULL JOIN reached r USING (sender)
         WHERE coalesce(contiguous, 0) <> coalesce(watermark, 0)",
        range,
    )
    .await
}

/// Numbers that were accepted and whose row is gone.
pub(super) async fn rows_missing(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH held AS (
             SELECT sender, sequence, request_id AS event_id FROM ledger_charges WHERE reason <> 'execution'
             UNION ALL SELECT sender, sequence, request_id FROM ledger_unpriced
             UNION ALL SELECT sender, sequence, record ->> 'id' FROM ledger_executions
             UNION ALL SELECT sender, sequence, NULL FROM ledger_rejections
         ), letters AS (
             SELECT s.*, l.sender AS letter_sender, l.sequence AS letter_sequence
             FROM ledger_sequences s LEFT JOIN ledger_dead_letters l
                 ON s.sender = 'replay' AND s.sequence = l.dead_letter
         )
         SELECT coalesce(event_id, sender || '.' || sequence) AS subject,
             'a record was accepted but its row is gone' AS what, topic AS left, '' AS right
         FROM letters s
         WHERE NOT EXISTS (
             SELECT FROM held h
             WHERE h.sender = coalesce(s.letter_sender, s.sender) AND h.sequence = coalesce(s.letter_sequence, s.sequence)
                 AND (h.event_id = s.event_id OR h.event_id IS NULL))
           AND NOT EXISTS (
             SELECT FROM ledger_dead_letters l
             WHERE l.sender = s.sender AND l.sequence = s.sequence AND s.event_id IS NULL)",
        range,
    )
    .await
}

/// Rows that no accepted record stands behind: the second of a doubled charge is one.
pub(super) async fn rows_without_record(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(
        connection,
        "WITH held AS (
             SELECT 'a charge' AS kind, request_id AS subject, sender, sequence, request_id AS event_id
             FROM ledger_charges WHERE reason <> 'execution'
             UNION ALL
             SELECT 'a record without a price', request_id, sender, sequence, request_id FROM ledger_unpriced
             UNION ALL
             SELECT 'an execution', request_id, sender, sequence, record ->> 'id' FROM ledger_executions
             UNION ALL
             SELECT 'a rejection', sender || '.' || sequence, sender, sequence, NULL FROM ledger_rejections
         ), accepted AS (
             SELECT sender, sequence, event_id FROM ledger_sequences WHERE sender <> 'replay'
             UNION ALL
             SELECT l.sender, l.sequence, s.event_id FROM ledger_sequences s
             JOIN ledger_dead_letters l ON s.sender = 'replay' AND s.sequence = l.dead_letter
         )
         SELECT subject, kind || ' without an accepted record' AS what, sender AS left, sequence::text AS right
         FROM held h WHERE NOT EXISTS (
             SELECT FROM accepted a WHERE a.sender = h.sender AND a.sequence = h.sequence
                 AND (h.event_id IS NULL OR a.event_id = h.event_id))
         UNION ALL
         SELECT request_id, 'a charge from executions without its execution', sender, sequence::text
         FROM ledger_charges c WHERE reason = 'execution' AND NOT EXISTS (
             SELECT FROM ledger_executions e
             WHERE e.sender = c.sender AND e.sequence = c.sequence AND e.request_id = c.request_id)",
        range,
    )
    .await
}
