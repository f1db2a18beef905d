//! `GET /api/v1/aliases`

use axum::Json;
use axum::extract::State;

use super::AliasView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List aliases, oldest first.
#[utoipa::path(get, path = "/api/v1/aliases", tag = "aliases", params(PageQuery),
    responses((status = 200, body = Page<AliasView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_aliases(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<AliasView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.aliases(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.alias_id.clone()))
}
