//! Reads of `tenants`.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use weir_schemas::config_snapshot::{Limits, ModelLimits};

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A tenant without its keys.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct TenantRow {
    pub(crate) tenant_id: String,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) weight: i64,
    pub(crate) limits: Json<Limits>,
    pub(crate) model_limits: Json<ModelLimits>,
    pub(crate) may_overflow: bool,
    pub(crate) created_at: DateTime<Utc>,
}

impl Store {
    /// A page of tenants, and one row more if there are more.
    pub(crate) async fn tenants(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<TenantRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT tenant_id, name, state, weight, limits, model_limits, may_overflow, created_at
             FROM tenants
             WHERE ($1::text IS NULL OR tenant_id > $1) ORDER BY tenant_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
