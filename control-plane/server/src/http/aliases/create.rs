//! `POST /api/v1/aliases`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::alias::{Alias, AliasCommand};
use weir_schemas::ids::AliasId;

use super::{AliasView, TargetBody, targets};
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// An alias to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateAlias {
    /// The name that clients ask for; unique.
    #[schema(example = "smollm2-135m-instruct")]
    name: String,
    /// Where its requests go.
    targets: Vec<TargetBody>,
}

/// Make an alias: the name that clients ask for.
#[utoipa::path(post, path = "/api/v1/aliases", tag = "aliases", request_body = CreateAlias,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = AliasView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_alias(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateAlias>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = AliasId::new(now);
    let command = AliasCommand::Create { id, name: body.name, targets: targets(&body.targets), now };
    single::<Alias, _>(&app, &admin.caller, (headers, &digest), (id, command), |state| {
        Reply::created(format!("/api/v1/aliases/{id}"), state.map(AliasView::from))
    })
    .await
}
