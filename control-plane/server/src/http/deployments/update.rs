//! `PATCH /api/v1/deployments/{deployment_id}`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::deployment::{Deployment, DeploymentCommand};
use weir_schemas::ids::DeploymentId;

use super::DeploymentView;
use super::overload::{OverloadBody, check_overflow};
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, SloBody, WriteProblems};
use crate::http::write::{Reply, Started, Write};

/// What to change; what is absent stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateDeployment {
    /// Replicas wanted.
    #[schema(minimum = 1)]
    replicas: Option<u32>,
    /// Latency targets.
    slo: Option<SloBody>,
    /// What is done with requests that would miss the target for the first token; replaces both classes' policies.
    overload: Option<OverloadBody>,
}

/// Change a deployment's replicas, latency targets or overload policies. Another version is another deployment.
#[utoipa::path(patch, path = "/api/v1/deployments/{deployment_id}", tag = "deployments", request_body = UpdateDeployment,
    params(("deployment_id" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on."), ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 200, body = DeploymentView, headers(("ETag" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn update_deployment(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<DeploymentId>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<UpdateDeployment>,
) -> Result<Response, Problem> {
    let UpdateDeployment { replicas, slo, overload } = body;
    let sets_overload = overload.is_some();
    let command =
        DeploymentCommand::Update { replicas, slo: slo.map(Into::into), overload: overload.map(Into::into) };
    let mut write = match Write::begin(&app, &admin.caller, headers, &digest).await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let changed = write.execute::<Deployment>(id, command).await?;
    // What was set before may name an alias that is gone; that keeps nobody from changing the rest.
    if let Some(deployment) = changed.state.as_ref().filter(|_| sets_overload) {
        check_overflow(&mut write.transaction, deployment).await?;
    }
    write.finish(changed.version, Reply::ok(changed.state.as_ref().map(DeploymentView::from))).await
}
