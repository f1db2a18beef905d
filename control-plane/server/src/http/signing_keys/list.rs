//! `GET /api/v1/signing-keys`

use axum::Json;
use axum::extract::State;

use super::SigningKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List signing keys, oldest first.
#[utoipa::path(get, path = "/api/v1/signing-keys", tag = "signing keys", params(PageQuery),
    responses((status = 200, body = Page<SigningKeyView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_signing_keys(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<SigningKeyView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.signing_keys(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.signing_key_id.clone()))
}
