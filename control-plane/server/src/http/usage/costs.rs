//! `GET /api/v1/costs`

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::buckets::{self, BucketPage};
use super::query::{UsageParams, UsageQuery};
use crate::auth::UsageCaller;
use crate::http::App;
use crate::http::problem::Problem;
use crate::http::schema::ReadProblems;
use crate::store::StoreError;
use crate::store::usage::CostRow;

/// An exact amount of money.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Amount {
    /// A JSON number with every digit of the exact amount; read it as a decimal, not as a float.
    #[schema(value_type = f64, example = 0.000123)]
    value: Box<RawValue>,
    /// ISO 4217 code in lower case, as OpenAI writes it.
    #[schema(example = "usd")]
    currency: String,
}

/// Costs of one group in one bucket. What is not grouped by is null.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CostResult {
    /// Always `organization.costs.result`.
    #[schema(example = "organization.costs.result")]
    object: &'static str,
    /// How much.
    amount: Amount,
    /// The model that was asked for.
    line_item: Option<String>,
    /// The project label that the client gave.
    project_id: Option<String>,
    /// The key.
    api_key_id: Option<String>,
    /// The tenant.
    tenant_id: Option<String>,
}

fn result(row: CostRow) -> Result<(i64, CostResult), StoreError> {
    let value = RawValue::from_string(row.amount).map_err(|_| StoreError::Corrupt { what: "amount" })?;
    let amount = Amount { value, currency: row.currency.to_lowercase() };
    let result = CostResult {
        object: "organization.costs.result",
        amount,
        line_item: row.model,
        project_id: row.project,
        api_key_id: row.key_id,
        tenant_id: row.tenant_id,
    };
    Ok((row.bucket, result))
}

/// Costs by time bucket: a tenant's own, or for operators everyone's or one tenant's. Requests without a price yet
/// are not in it.
#[utoipa::path(get, path = "/api/v1/costs", tag = "usage", params(UsageParams),
    responses((status = 200, body = BucketPage<CostResult>), ReadProblems),
    security(("token" = ["usage:read"]), ("token" = ["platform:admin"])))]
pub(crate) async fn get_costs(
    caller: UsageCaller,
    State(app): State<App>,
    query: UsageQuery,
) -> Result<Json<BucketPage<CostResult>>, Problem> {
    let rows = app.store.costs(caller.scope, &query.filter).await?;
    let rows = rows.into_iter().map(result).collect::<Result<Vec<_>, _>>()?;
    buckets::page(&query, rows, |(bucket, _)| *bucket, |(_, result)| result)
}
