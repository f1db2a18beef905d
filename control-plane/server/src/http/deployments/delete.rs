//! `DELETE /api/v1/deployments/{deployment_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::deployment::{Deployment, DeploymentCommand};
use weir_schemas::ids::DeploymentId;

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// End a deployment. Its workers stop serving the version.
#[utoipa::path(delete, path = "/api/v1/deployments/{deployment_id}", tag = "deployments",
    params(("deployment_id" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on.")),
    responses((status = 204), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn delete_deployment(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<DeploymentId>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    single::<Deployment, _>(&app, &admin.caller, (headers, ""), (id, DeploymentCommand::Delete), |_| {
        Reply::done()
    })
    .await
}
