//! Reads of `models`.

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A model.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct ModelRow {
    pub(crate) model_id: String,
    pub(crate) name: String,
    pub(crate) created_at: DateTime<Utc>,
}

impl Store {
    /// A page of models, and one row more if there are more.
    pub(crate) async fn models(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<ModelRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT model_id, name, created_at FROM models WHERE ($1::text IS NULL OR model_id > $1)
             ORDER BY model_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
