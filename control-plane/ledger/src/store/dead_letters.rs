//! Records kept aside with their bytes and the reason.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::text;
use crate::incoming::{DeadReason, Received};

pub(crate) async fn insert(
    connection: &mut PgConnection,
    sender: &str,
    letters: &[(&Received, DeadReason, &str)],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    if letters.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO ledger_dead_letters (sender, stored_at, sequence, topic, key, payload, reason, detail)
         SELECT $1, $2, * FROM unnest($3::bigint[], $4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::text[])",
    )
    .bind(sender)
    .bind(now)
    .bind(letters.iter().map(|(record, ..)| record.sequence).collect::<Vec<_>>())
    .bind(letters.iter().map(|(record, ..)| text(&record.topic)).collect::<Vec<_>>())
    .bind(letters.iter().map(|(record, ..)| record.key.as_bytes().to_vec()).collect::<Vec<_>>())
    .bind(letters.iter().map(|(record, ..)| record.payload.clone()).collect::<Vec<_>>())
    .bind(letters.iter().map(|(_, reason, _)| reason.as_str().to_owned()).collect::<Vec<_>>())
    .bind(letters.iter().map(|(.., detail)| text(detail)).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}
