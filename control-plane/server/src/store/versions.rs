//! Reads of `versions`.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use weir_schemas::ids::ModelId;

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A pinned version.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct VersionRow {
    pub(crate) version_id: String,
    pub(crate) model_id: String,
    pub(crate) weights_uri: String,
    pub(crate) digest: String,
    pub(crate) dtype: String,
    pub(crate) parameter_count: i64,
    pub(crate) context_limit: i64,
    pub(crate) tokenizer_digest: String,
    pub(crate) created_at: DateTime<Utc>,
}

impl Store {
    /// A page of versions, of one model or of all, and one row more if there are more.
    pub(crate) async fn versions(
        &self,
        scope: PlatformScope,
        model: Option<ModelId>,
        page: &PageRequest,
    ) -> Result<Vec<VersionRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT version_id, model_id, weights_uri, digest, dtype, parameter_count, context_limit,
             tokenizer_digest, created_at FROM versions WHERE ($1::text IS NULL OR version_id > $1)
             AND ($2::text IS NULL OR model_id = $2) ORDER BY version_id LIMIT $3",
        )
        .bind(&page.after)
        .bind(model.map(|model| model.to_string()))
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
