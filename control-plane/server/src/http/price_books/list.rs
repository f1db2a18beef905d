//! `GET /api/v1/price-books`

use axum::Json;
use axum::extract::State;

use super::PriceBookView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List price books, oldest first.
#[utoipa::path(get, path = "/api/v1/price-books", tag = "prices", params(PageQuery),
    responses((status = 200, body = Page<PriceBookView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_price_books(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<PriceBookView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.price_books(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.price_book_id.clone()))
}
