//! `GET /api/v1/platform/keys`

use axum::Json;
use axum::extract::State;

use super::PlatformKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List operators' keys, oldest first, revoked ones too.
#[utoipa::path(get, path = "/api/v1/platform/keys", tag = "platform", params(PageQuery),
    responses((status = 200, body = Page<PlatformKeyView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_platform_keys(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<PlatformKeyView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.platform_keys(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.key_id.clone()))
}
