//! `POST /api/v1/deployments`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::deployment::{Deployment, DeploymentCommand};
use weir_schemas::ids::{DeploymentId, VersionId};

use super::DeploymentView;
use super::overload::{OverloadBody, check_overflow};
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, SloBody, WriteProblems};
use crate::http::write::{Reply, Started, Write};

const fn one() -> u32 {
    1
}

/// A deployment to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateDeployment {
    /// What is served.
    #[schema(value_type = String)]
    version_id: VersionId,
    /// The workers that serve it: those started with this pool name.
    #[schema(example = "default")]
    pool: String,
    /// Replicas wanted.
    #[serde(default = "one")]
    #[schema(minimum = 1, default = 1)]
    replicas: u32,
    /// Latency targets; 200 ms to the first token and 100 ms between tokens if absent.
    slo: Option<SloBody>,
    /// What is done with requests that would miss the target for the first token; if absent they wait, within the default
    /// bounds.
    overload: Option<OverloadBody>,
}

/// Serve a pinned version by a pool of workers.
#[utoipa::path(post, path = "/api/v1/deployments", tag = "deployments", request_body = CreateDeployment,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = DeploymentView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_deployment(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateDeployment>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = DeploymentId::new(now);
    let command = DeploymentCommand::Create {
        id,
        version: body.version_id,
        pool: body.pool,
        replicas: body.replicas,
        slo: body.slo.map(Into::into).unwrap_or_default(),
        overload: body.overload.map(Into::into).unwrap_or_default(),
        now,
    };
    let mut write = match Write::begin(&app, &admin.caller, headers, &digest).await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let made = write.execute::<Deployment>(id, command).await?;
    if let Some(deployment) = &made.state {
        check_overflow(&mut write.transaction, deployment).await?;
    }
    let view = made.state.as_ref().map(DeploymentView::from);
    write.finish(made.version, Reply::created(format!("/api/v1/deployments/{id}"), view)).await
}
