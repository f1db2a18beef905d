//! Reads of `deployments`.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use weir_schemas::config_snapshot::Overload;

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A deployment.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct DeploymentRow {
    pub(crate) deployment_id: String,
    pub(crate) version_id: String,
    pub(crate) pool: String,
    pub(crate) replicas: i64,
    pub(crate) ttft_ms: i64,
    pub(crate) itl_ms: i64,
    pub(crate) overload: Json<Overload>,
    pub(crate) created_at: DateTime<Utc>,
}

impl Store {
    /// A page of deployments, and one row more if there are more.
    pub(crate) async fn deployments(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<DeploymentRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT deployment_id, version_id, pool, replicas, ttft_ms, itl_ms, overload, created_at
             FROM deployments
             WHERE ($1::text IS NULL OR deployment_id > $1) ORDER BY deployment_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
