//! `GET /api/v1/deployments/{deployment_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::deployment::Deployment;
use weir_schemas::ids::DeploymentId;

use super::DeploymentView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a deployment, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/deployments/{deployment_id}", tag = "deployments",
    params(("deployment_id" = String, Path), AsOfQuery),
    responses((status = 200, body = DeploymentView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_deployment(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<DeploymentId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<Deployment, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| {
        DeploymentView::from(state)
    })
    .await
}
