//! `GET /api/v1/tenants`

use axum::Json;
use axum::extract::State;

use super::TenantView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List tenants, oldest first.
#[utoipa::path(get, path = "/api/v1/tenants", tag = "tenants", params(PageQuery),
    responses((status = 200, body = Page<TenantView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_tenants(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<TenantView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.tenants(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.tenant_id.clone()))
}
