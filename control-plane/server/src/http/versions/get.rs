//! `GET /api/v1/versions/{version_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::version::ModelVersion;
use weir_schemas::ids::VersionId;

use super::VersionView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a pinned version, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/versions/{version_id}", tag = "models",
    params(("version_id" = String, Path), AsOfQuery),
    responses((status = 200, body = VersionView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_version(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<VersionId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<ModelVersion, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| {
        VersionView::from(state)
    })
    .await
}
