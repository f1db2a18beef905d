//! Reads of `aliases` with their targets.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use sqlx::types::Json;
use weir_schemas::config_snapshot::AliasTarget;

use super::error::StoreError;
use super::page::PageRequest;
use super::{Store, WriteTransaction};
use crate::scope::PlatformScope;

/// An alias.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct AliasRow {
    pub(crate) alias_id: String,
    pub(crate) name: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) targets: Json<Vec<AliasTarget>>,
}

/// Selects [`AliasRow`]s; a `WHERE` may follow.
pub(super) const SELECT: &str = "SELECT alias_id, name, created_at,
     (SELECT jsonb_agg(jsonb_build_object('version', version_id, 'weight', weight) ORDER BY ordinal)
      FROM alias_targets WHERE alias_targets.alias_id = aliases.alias_id) AS targets FROM aliases";

impl Store {
    /// A page of aliases, and one row more if there are more.
    pub(crate) async fn aliases(
        &self,
        scope: PlatformScope,
        page: &PageRequest,
    ) -> Result<Vec<AliasRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(&format!(
            "{SELECT} WHERE ($1::text IS NULL OR alias_id > $1) ORDER BY alias_id LIMIT $2"
        ))
        .bind(&page.after)
        .bind(page.rows())
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}

impl WriteTransaction {
    /// The versions that an alias of this name sends requests to; empty if there is none.
    pub(crate) async fn alias_targets(&mut self, name: &str) -> Result<Vec<String>, StoreError> {
        let targets = sqlx::query_scalar(
            "SELECT version_id FROM alias_targets JOIN aliases USING (alias_id) WHERE name = $1 ORDER BY ordinal",
        )
        .bind(name)
        .fetch_all(self.connection())
        .await?;
        Ok(targets)
    }
}
