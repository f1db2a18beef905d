//! `GET /api/v1/price-books/{price_book_id}/prices`

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use weir_schemas::ids::{PriceBookId, VersionId};

use super::PriceView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{Page, limit};
use crate::http::schema::ReadProblems;

/// Which prices.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PricesQuery {
    /// Only this version's.
    #[param(value_type = Option<String>)]
    version_id: Option<VersionId>,
    /// Most entries wanted, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    after: Option<u32>,
}

/// List a book's prices in the order in which they were set.
#[utoipa::path(get, path = "/api/v1/price-books/{price_book_id}/prices", tag = "prices",
    params(("price_book_id" = String, Path), PricesQuery),
    responses((status = 200, body = Page<PriceView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_prices(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(book): Path<PriceBookId>,
    Query(query): Query<PricesQuery>,
) -> Result<Json<Page<PriceView>>, Problem> {
    let limit = limit(query.limit)?;
    let after = query.after.map_or(0, i64::from);
    let rows = app.store.prices(admin.scope, book, query.version_id, after, i64::from(limit) + 1).await?;
    Ok(Page::of(rows, limit, |row| row.position.to_string()))
}
