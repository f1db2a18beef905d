//! `GET /api/v1/models`

use axum::Json;
use axum::extract::State;

use super::ModelView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List models, oldest first.
#[utoipa::path(get, path = "/api/v1/models", tag = "models", params(PageQuery),
    responses((status = 200, body = Page<ModelView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_models(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<ModelView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.models(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.model_id.clone()))
}
