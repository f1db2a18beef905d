//! `POST /api/v1/models`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::model::{Model, ModelCommand};
use weir_schemas::ids::ModelId;

use super::ModelView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// A model to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateModel {
    /// Its name; unique.
    #[schema(example = "SmolLM2-135M-Instruct")]
    name: String,
}

/// Make a model: the family that pinned versions belong to.
#[utoipa::path(post, path = "/api/v1/models", tag = "models", request_body = CreateModel,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = ModelView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_model(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateModel>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = ModelId::new(now);
    let command = ModelCommand::Create { id, name: body.name, now };
    single::<Model, _>(&app, &admin.caller, (headers, &digest), (id, command), |state| {
        Reply::created(format!("/api/v1/models/{id}"), state.map(ModelView::from))
    })
    .await
}
