//! Reads of `keys` and `platform_keys`: lists for people, and what authentication needs of one key.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use weir_schemas::config_snapshot::{Limits, ModelLimits, Scope};
use weir_schemas::ids::{KeyId, SigningKeyId, TenantId};

use super::error::StoreError;
use super::page::PageRequest;
use super::{Store, WriteTransaction};
use crate::scope::{PlatformScope, TenantScope};

/// A tenant's key.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct KeyRow {
    pub(crate) key_id: String,
    pub(crate) name: String,
    pub(crate) scopes: Json<Vec<Scope>>,
    pub(crate) limits: Json<Limits>,
    pub(crate) model_limits: Json<ModelLimits>,
    pub(crate) signing_key: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

/// An operator's key.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct PlatformKeyRow {
    pub(crate) key_id: String,
    pub(crate) name: String,
    pub(crate) signing_key: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

const KEY_COLUMNS: &str =
    "key_id, name, scopes, limits, model_limits, signing_key, created_at, expires_at, revoked_at";

impl Store {
    /// A page of the tenant's keys, and one row more if there are more.
    pub(crate) async fn keys(
        &self,
        scope: TenantScope,
        page: &PageRequest,
    ) -> Result<Vec<KeyRow>, StoreError> {
        let mut transaction = self.read_as(scope).await?;
        let rows = sqlx::query_as(&format!(
            "SELECT {KEY_COLUMNS} FROM keys WHERE tenant_id = $1 AND ($2::text IS NULL OR key_id > $2)
             ORDER BY key_id LIMIT $3"
        ))
        .bind(scope.tenant().to_string())
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }

    /// One of the tenant's keys.
    pub(crate) async fn key(&self, scope: TenantScope, key: KeyId) -> Result<Option<KeyRow>, StoreError> {
        let mut transaction = self.read_as(scope).await?;
        let row =
            sqlx::query_as(&format!("SELECT {KEY_COLUMNS} FROM keys WHERE tenant_id = $1 AND key_id = $2"))
                .bind(scope.tenant().to_string())
                .bind(key.to_string())
                .fetch_optional(&mut *transaction)
                .await?;
        Ok(row)
    }

    /// A page of operators' keys, and one row more if there are more.
    pub(crate) async fn platform_keys(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<PlatformKeyRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT key_id, name, signing_key, created_at, expires_at, revoked_at FROM platform_keys
             WHERE ($1::text IS NULL OR key_id > $1) ORDER BY key_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }

    /// What the allow-list lets a tenant's token do at `now`; `None` for one it does not hold.
    pub(crate) async fn allowed_scopes(
        &self,
        tenant: TenantId,
        key: KeyId,
        now: DateTime<Utc>,
    ) -> Result<Option<Vec<Scope>>, StoreError> {
        let scopes: Option<Json<Vec<Scope>>> = sqlx::query_scalar(
            "SELECT scopes FROM keys JOIN tenants USING (tenant_id) WHERE key_id = $1 AND tenant_id = $2
             AND revoked_at IS NULL AND expires_at > $3 AND state = 'active'",
        )
        .bind(key.to_string())
        .bind(tenant.to_string())
        .bind(now)
        .fetch_optional(self.pool()?)
        .await?;
        Ok(scopes.map(|scopes| scopes.0))
    }

    /// Whether the allow-list holds this operator's key at `now`.
    pub(crate) async fn is_platform_key(&self, key: KeyId, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let found: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM platform_keys
             WHERE key_id = $1 AND revoked_at IS NULL AND expires_at > $2)",
        )
        .bind(key.to_string())
        .bind(now)
        .fetch_one(self.pool()?)
        .await?;
        Ok(found)
    }
}

impl WriteTransaction {
    /// Whether any operator's key was ever issued.
    pub(crate) async fn has_platform_keys(&mut self) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar("SELECT EXISTS (SELECT FROM platform_keys)")
            .fetch_one(self.connection())
            .await?)
    }

    /// When the last good token signed with `signing_key` expires.
    pub(crate) async fn tokens_until(
        &mut self,
        signing_key: SigningKeyId,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let now = self.now();
        let until = sqlx::query_scalar(
            "SELECT max(expires_at) FROM
             (SELECT signing_key, expires_at, revoked_at FROM keys
              UNION ALL SELECT signing_key, expires_at, revoked_at FROM platform_keys) AS issued
             WHERE signing_key = $1 AND revoked_at IS NULL AND expires_at > $2",
        )
        .bind(signing_key.to_string())
        .bind(now)
        .fetch_one(self.connection())
        .await?;
        Ok(until)
    }
}
