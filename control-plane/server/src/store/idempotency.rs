//! Answers to writes that carried an Idempotency-Key, kept in the write's own transaction for a day, so that a
//! repeat gets the same answer and changes nothing. A token is never kept: the caller of [`remember`] leaves it out.

use chrono::TimeDelta;
use serde_json::Value;
use sqlx::FromRow;

use super::WriteTransaction;
use super::error::StoreError;

/// How long a repeat is recognised, as for inference requests.
const KEPT: TimeDelta = TimeDelta::hours(24);
/// Old answers removed with each new one: more than one, so that the table shrinks; few, so that no write is slow.
const PRUNED_AT_ONCE: i64 = 100;

/// A key and what it was sent with.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyKey {
    /// Whose: keys of two callers never meet.
    pub(crate) principal: String,
    /// The header's value.
    pub(crate) key: String,
    /// Digest of method, path and body.
    pub(crate) fingerprint: String,
}

/// An answer as it is kept.
#[derive(Debug, Clone, PartialEq, FromRow)]
pub(crate) struct StoredReply {
    pub(crate) status: i16,
    pub(crate) etag: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) body: Option<Value>,
}

#[derive(FromRow)]
struct Row {
    fingerprint: String,
    #[sqlx(flatten)]
    reply: StoredReply,
}

impl WriteTransaction {
    /// The answer already given to this key, if any.
    pub(crate) async fn replay(&mut self, key: &IdempotencyKey) -> Result<Option<StoredReply>, StoreError> {
        let oldest = self.now() - KEPT;
        let row: Option<Row> = sqlx::query_as(
            "SELECT fingerprint, status, etag, location, body FROM idempotency_keys
             WHERE principal = $1 AND key = $2 AND created_at > $3",
        )
        .bind(&key.principal)
        .bind(&key.key)
        .bind(oldest)
        .fetch_optional(self.connection())
        .await?;
        match row {
            None => Ok(None),
            Some(row) if row.fingerprint == key.fingerprint => Ok(Some(row.reply)),
            Some(_) => Err(StoreError::KeyReused),
        }
    }

    /// Keeps the answer given to this key.
    pub(crate) async fn remember(
        &mut self,
        key: &IdempotencyKey,
        reply: &StoredReply,
    ) -> Result<(), StoreError> {
        let now = self.now();
        sqlx::query(
            "DELETE FROM idempotency_keys WHERE (principal, key) IN
             (SELECT principal, key FROM idempotency_keys WHERE created_at <= $1 LIMIT $2)
             OR (principal = $3 AND key = $4)",
        )
        .bind(now - KEPT)
        .bind(PRUNED_AT_ONCE)
        .bind(&key.principal)
        .bind(&key.key)
        .execute(self.connection())
        .await?;
        sqlx::query(
            "INSERT INTO idempotency_keys (principal, key, fingerprint, status, etag, location, body, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&key.principal)
        .bind(&key.key)
        .bind(&key.fingerprint)
        .bind(reply.status)
        .bind(&reply.etag)
        .bind(&reply.location)
        .bind(&reply.body)
        .bind(now)
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
