//! `GET /api/v1/usage`

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::buckets::{self, BucketPage};
use super::query::{UsageParams, UsageQuery};
use crate::auth::UsageCaller;
use crate::http::App;
use crate::http::problem::Problem;
use crate::http::schema::ReadProblems;
use crate::store::usage::UsageRow;

/// Usage of one group in one bucket. What is not grouped by is null.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageResult {
    /// Always `organization.usage.completions.result`.
    #[schema(example = "organization.usage.completions.result")]
    object: &'static str,
    /// Prompt tokens, cached ones included.
    input_tokens: i64,
    /// Prompt tokens taken from the prefix cache.
    input_cached_tokens: i64,
    /// Generated tokens.
    output_tokens: i64,
    /// Requests.
    num_model_requests: i64,
    /// The project label that the client gave.
    project_id: Option<String>,
    /// The key.
    api_key_id: Option<String>,
    /// The model that was asked for.
    model: Option<String>,
    /// The pinned version that answered.
    version_id: Option<String>,
    /// `interactive` or `batch`.
    service_tier: Option<String>,
    /// The tenant.
    tenant_id: Option<String>,
}

impl From<UsageRow> for UsageResult {
    fn from(row: UsageRow) -> Self {
        Self {
            object: "organization.usage.completions.result",
            input_tokens: row.input_tokens,
            input_cached_tokens: row.input_cached_tokens,
            output_tokens: row.output_tokens,
            num_model_requests: row.requests,
            project_id: row.project,
            api_key_id: row.key_id,
            model: row.model,
            version_id: row.version_id,
            service_tier: row.tier,
            tenant_id: row.tenant_id,
        }
    }
}

/// Usage by time bucket: a tenant's own, or for operators everyone's or one tenant's.
#[utoipa::path(get, path = "/api/v1/usage", tag = "usage", params(UsageParams),
    responses((status = 200, body = BucketPage<UsageResult>), ReadProblems),
    security(("token" = ["usage:read"]), ("token" = ["platform:admin"])))]
pub(crate) async fn get_usage(
    caller: UsageCaller,
    State(app): State<App>,
    query: UsageQuery,
) -> Result<Json<BucketPage<UsageResult>>, Problem> {
    let rows = app.store.usage(caller.scope, &query.filter).await?;
    buckets::page(&query, rows, |row| row.bucket, UsageResult::from)
}
