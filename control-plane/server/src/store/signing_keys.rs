//! Reads of `signing_keys`: public parts and states.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use weir_schemas::ids::SigningKeyId;

use super::error::StoreError;
use super::page;
use super::page::PageRequest;
use super::{Store, WriteTransaction};
use crate::scope::PlatformScope;

/// A signing key's public part and state.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct SigningKeyRow {
    pub(crate) signing_key_id: String,
    pub(crate) public_key: String,
    pub(crate) state: String,
    pub(crate) created_at: DateTime<Utc>,
}

const COLUMNS: &str = "signing_key_id, public_key, state, created_at";

impl Store {
    /// A page of signing keys, and one row more if there are more.
    pub(crate) async fn signing_keys(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<SigningKeyRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(&format!(
            "SELECT {COLUMNS} FROM signing_keys WHERE ($1::text IS NULL OR signing_key_id > $1)
             ORDER BY signing_key_id LIMIT $2"
        ))
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }

    /// The keys that verify tokens: public by nature.
    pub(crate) async fn verification_keys(&self) -> Result<Vec<SigningKeyRow>, StoreError> {
        let rows = sqlx::query_as(&format!(
            "SELECT {COLUMNS} FROM signing_keys WHERE state <> 'retired' ORDER BY signing_key_id"
        ))
        .fetch_all(self.pool()?)
        .await?;
        Ok(rows)
    }

    /// The public part of a key that still verifies.
    pub(crate) async fn verification_key(&self, id: SigningKeyId) -> Result<Option<String>, StoreError> {
        let found = sqlx::query_scalar(
            "SELECT public_key FROM signing_keys WHERE signing_key_id = $1 AND state <> 'retired'",
        )
        .bind(id.to_string())
        .fetch_optional(self.pool()?)
        .await?;
        Ok(found)
    }
}

impl WriteTransaction {
    /// The keys that sign, newest first.
    pub(crate) async fn active_signing_keys(&mut self) -> Result<Vec<SigningKeyId>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT signing_key_id FROM signing_keys WHERE state = 'active' ORDER BY signing_key_id DESC",
        )
        .fetch_all(self.connection())
        .await?;
        ids.iter().map(|text| page::id(text)).collect()
    }
}
