//! `GET /api/v1/deployments`

use axum::Json;
use axum::extract::State;

use super::DeploymentView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, PageQuery};
use crate::http::schema::ReadProblems;

/// List deployments, oldest first.
#[utoipa::path(get, path = "/api/v1/deployments", tag = "deployments", params(PageQuery),
    responses((status = 200, body = Page<DeploymentView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_deployments(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<DeploymentView>>, Problem> {
    let page = query.check()?;
    let rows = app.store.deployments(admin.scope, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.deployment_id.clone()))
}
