//! Dead letters whose copy has yet to be sent.

use sqlx::PgConnection;

/// A letter with all that is known of it.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Posted {
    pub(crate) dead_letter: i64,
    pub(crate) sender: String,
    pub(crate) sequence: i64,
    pub(crate) topic: String,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) reason: String,
    pub(crate) detail: String,
}

/// The oldest letters, held against another ledger until the transaction ends.
pub(crate) async fn take(connection: &mut PgConnection, limit: i64) -> Result<Vec<Posted>, sqlx::Error> {
    sqlx::query_as(
        "SELECT dead_letter, sender, sequence, topic, key, payload, reason, detail
         FROM ledger_dead_letter_outbox o JOIN ledger_dead_letters USING (dead_letter)
         ORDER BY dead_letter LIMIT $1 FOR UPDATE OF o SKIP LOCKED",
    )
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// The broker has these.
pub(crate) async fn sent(connection: &mut PgConnection, dead_letters: &[i64]) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM ledger_dead_letter_outbox WHERE dead_letter = ANY($1)")
        .bind(dead_letters)
        .execute(connection)
        .await?;
    Ok(())
}
