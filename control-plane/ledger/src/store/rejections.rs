//! Refused requests, as counted by the gateways.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use weir_schemas::records::RejectionData;

use super::{count, text, wire_name};

/// Rejections with their sender and its number for them.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    rejections: &[(&str, i64, &RejectionData)],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    if rejections.is_empty() {
        return Ok(());
    }
    let words = |value: fn(&RejectionData) -> String| -> Vec<String> {
        rejections.iter().map(|(.., data)| value(data)).collect()
    };
    sqlx::query(
        "INSERT INTO ledger_rejections (stored_at, sender, sequence, minute, tenant_id, requested_model, reason, count)
         SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::bigint[])",
    )
    .bind(now)
    .bind(rejections.iter().map(|(sender, ..)| *sender).collect::<Vec<_>>())
    .bind(rejections.iter().map(|(_, sequence, _)| *sequence).collect::<Vec<_>>())
    .bind(rejections.iter().map(|(.., data)| data.minute).collect::<Vec<_>>())
    .bind(words(|data| data.tenant.to_string()))
    .bind(words(|data| text(&data.requested_model)))
    .bind(words(|data| wire_name(data.reason)))
    .bind(rejections.iter().map(|(.., data)| count(data.count)).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}
