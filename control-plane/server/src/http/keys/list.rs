//! `GET /api/v1/tenants/{tenant_id}/keys`

use axum::Json;
use axum::extract::State;

use super::KeyView;
use crate::auth::{KeysWrite, TenantCaller};
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List a tenant's keys, oldest first, revoked ones too.
#[utoipa::path(get, path = "/api/v1/tenants/{tenant_id}/keys", tag = "keys",
    params(("tenant_id" = String, Path), PageQuery),
    responses((status = 200, body = Page<KeyView>), ReadProblems),
    security(("token" = ["keys:write"]), ("token" = ["platform:admin"])))]
pub(crate) async fn list_keys(
    caller: TenantCaller<KeysWrite>,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<KeyView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.keys(caller.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.key_id.clone()))
}
