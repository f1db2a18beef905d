//! Reads of the ledger's roll-up: usage and costs by time bucket and group. The ledger owns the table.

use sqlx::FromRow;

use super::Store;
use super::error::StoreError;
use crate::scope::ReadScope;

/// What rows are told apart by, besides the bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Grouping {
    pub(crate) tenant: bool,
    pub(crate) project: bool,
    pub(crate) key: bool,
    pub(crate) model: bool,
    pub(crate) version: bool,
    pub(crate) tier: bool,
}

/// Which minutes and which of their rows; an empty list lets all pass.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsageFilter {
    /// Unix seconds, inclusive and exclusive.
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) bucket_s: i64,
    pub(crate) group: Grouping,
    pub(crate) projects: Vec<String>,
    pub(crate) keys: Vec<String>,
    pub(crate) models: Vec<String>,
    /// Most rows; one more is returned if there are more.
    pub(crate) rows_max: i64,
}

/// Sums of one bucket and group. What is not grouped by is `None`.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct UsageRow {
    pub(crate) bucket: i64,
    pub(crate) tenant_id: Option<String>,
    pub(crate) project: Option<String>,
    pub(crate) key_id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) version_id: Option<String>,
    pub(crate) tier: Option<String>,
    pub(crate) requests: i64,
    pub(crate) input_tokens: i64,
    pub(crate) input_cached_tokens: i64,
    pub(crate) output_tokens: i64,
}

/// Costs of one bucket, group and currency, exact, as Postgres prints a numeric.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct CostRow {
    pub(crate) bucket: i64,
    pub(crate) tenant_id: Option<String>,
    pub(crate) project: Option<String>,
    pub(crate) key_id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) currency: String,
    pub(crate) amount: String,
}

/// The bucket, the columns that may be grouped by, and the rows that pass. `$1`–`$3` time, `$4`–`$9` grouping,
/// `$10`–`$12` filters, `$13` tenant.
const GROUPS: &str = "SELECT
    (floor(extract(epoch FROM bucket_start) / $3) * $3)::bigint AS bucket,
    CASE WHEN $4 THEN tenant_id END AS tenant_id,
    CASE WHEN $5 THEN project END AS project,
    CASE WHEN $6 THEN key_id END AS key_id,
    CASE WHEN $7 THEN requested_model END AS model,
    CASE WHEN $8 THEN version_id END AS version_id,
    CASE WHEN $9 THEN tier END AS tier,";
const ROWS: &str = "FROM ledger_usage_minutes
    WHERE bucket_start >= to_timestamp($1) AND bucket_start < to_timestamp($2)
    AND (cardinality($10::text[]) = 0 OR project = ANY($10))
    AND (cardinality($11::text[]) = 0 OR key_id = ANY($11))
    AND (cardinality($12::text[]) = 0 OR requested_model = ANY($12))
    AND ($13::text IS NULL OR tenant_id = $13)";

impl Store {
    /// Usage by bucket and group, in their order.
    pub(crate) async fn usage(
        &self,
        scope: ReadScope,
        filter: &UsageFilter,
    ) -> Result<Vec<UsageRow>, StoreError> {
        let sql = format!(
            "{GROUPS} sum(requests)::bigint AS requests, sum(input_tokens)::bigint AS input_tokens,
             sum(input_cached_tokens)::bigint AS input_cached_tokens, sum(output_tokens)::bigint AS output_tokens
             {ROWS} GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7 LIMIT $14"
        );
        self.usage_rows(scope, &sql, filter).await
    }

    /// Costs by bucket, group and currency, in their order. What has no price yet has no cost.
    pub(crate) async fn costs(
        &self,
        scope: ReadScope,
        filter: &UsageFilter,
    ) -> Result<Vec<CostRow>, StoreError> {
        let sql = format!(
            "{GROUPS} currency, trim_scale(sum(amount))::text AS amount {ROWS} AND currency <> ''
             GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8 LIMIT $14"
        );
        self.usage_rows(scope, &sql, filter).await
    }

    async fn usage_rows<R>(
        &self,
        scope: ReadScope,
        sql: &str,
        filter: &UsageFilter,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'r> FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        let tenant = match scope {
            ReadScope::Platform(_) => None,
            ReadScope::Tenant(scope) => Some(scope.tenant().to_string()),
        };
        let mut transaction = self.read_scoped(scope).await?;
        let rows = sqlx::query_as(sql)
            .bind(filter.start)
            .bind(filter.end)
            .bind(filter.bucket_s)
            .bind(filter.group.tenant)
            .bind(filter.group.project)
            .bind(filter.group.key)
            .bind(filter.group.model)
            .bind(filter.group.version)
            .bind(filter.group.tier)
            .bind(&filter.projects)
            .bind(&filter.keys)
            .bind(&filter.models)
            .bind(tenant)
            .bind(filter.rows_max + 1)
            .fetch_all(&mut *transaction)
            .await?;
        Ok(rows)
    }
}
