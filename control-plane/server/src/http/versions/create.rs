//! `POST /api/v1/versions`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::version::{Artifact, ModelVersion, VersionCommand};
use weir_schemas::ids::{ModelId, VersionId};

use super::VersionView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// An artifact to pin.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateVersion {
    /// The model that it is a version of.
    #[schema(value_type = String)]
    model_id: ModelId,
    /// Where workers read the weights.
    #[schema(example = "file:///models/smollm2.gguf")]
    weights_uri: String,
    /// `sha256:…` of the weights.
    digest: String,
    /// Storage type of most weights.
    #[schema(example = "Q4_1")]
    dtype: String,
    /// Number of parameters.
    parameter_count: u64,
    /// Longest sequence, in tokens.
    context_limit: u32,
    /// `sha256:…` of the model text that gateways tokenise with.
    tokenizer_digest: String,
}

/// Pin a version: an immutable artifact of a model.
#[utoipa::path(post, path = "/api/v1/versions", tag = "models", request_body = CreateVersion,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = VersionView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_version(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateVersion>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = VersionId::new(now);
    let artifact = Artifact {
        weights_uri: body.weights_uri,
        digest: body.digest,
        dtype: body.dtype,
        parameter_count: body.parameter_count,
        context_limit: body.context_limit,
        tokenizer_digest: body.tokenizer_digest,
    };
    let command = VersionCommand::Create { id, model: body.model_id, artifact, now };
    single::<ModelVersion, _>(&app, &admin.caller, (headers, &digest), (id, command), |state| {
        Reply::created(format!("/api/v1/versions/{id}"), state.map(VersionView::from))
    })
    .await
}
