//! `GET /api/v1/price-books/{price_book_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::price_book::PriceBook;
use weir_schemas::ids::PriceBookId;

use super::PriceBookView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a price book, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/price-books/{price_book_id}", tag = "prices",
    params(("price_book_id" = String, Path), AsOfQuery),
    responses((status = 200, body = PriceBookView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_price_book(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<PriceBookId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<PriceBook, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| {
        PriceBookView::from(state)
    })
    .await
}
