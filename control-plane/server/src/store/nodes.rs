//! Reads of `nodes`.

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::Store;
use super::error::StoreError;
use super::page::PageRequest;
use crate::scope::PlatformScope;

/// A node and what it last said about itself.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct NodeRow {
    pub(crate) node_id: String,
    pub(crate) kind: String,
    pub(crate) instance: String,
    pub(crate) address: String,
    pub(crate) pool: String,
    pub(crate) registered_at: DateTime<Utc>,
    pub(crate) retired_at: Option<DateTime<Utc>>,
}

impl Store {
    /// A page of nodes, and one row more if there are more.
    pub(crate) async fn nodes(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<NodeRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(
            "SELECT node_id, kind, instance, address, pool, registered_at, retired_at FROM nodes
             WHERE ($1::text IS NULL OR node_id > $1) ORDER BY node_id LIMIT $2",
        )
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
