//! `GET /api/v1/versions`

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use weir_schemas::ids::ModelId;

use super::VersionView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, limit};
use crate::http::schema::ReadProblems;
use crate::store::page::PageRequest;

/// Which versions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionsQuery {
    /// Only this model's.
    #[param(value_type = Option<String>)]
    model_id: Option<ModelId>,
    /// Most entries wanted, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    after: Option<String>,
}

/// List pinned versions, oldest first.
#[utoipa::path(get, path = "/api/v1/versions", tag = "models", params(VersionsQuery),
    responses((status = 200, body = Page<VersionView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_versions(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<VersionsQuery>,
) -> Result<Json<Page<VersionView>>, Problem> {
    let page = PageRequest { limit: limit(query.limit)?, after: query.after };
    let rows = app.store.versions(admin.scope, query.model_id, &page).await?;
    Ok(Page::of(rows, page.limit, |row| row.version_id.clone()))
}
