//! `PUT /api/v1/aliases/{alias_id}/targets`
//!
//! Canary, blue/green and instant rollback are all this one operation; the pinned versions stay what they are.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::alias::{Alias, AliasCommand};
use weir_schemas::ids::AliasId;

use super::{AliasView, TargetBody, targets};
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// Where an alias' requests shall go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetargetAlias {
    /// The new targets, replacing all of the old ones.
    targets: Vec<TargetBody>,
}

/// Send an alias' requests elsewhere, by weight.
#[utoipa::path(put, path = "/api/v1/aliases/{alias_id}/targets", tag = "aliases", request_body = RetargetAlias,
    params(("alias_id" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on."), ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 200, body = AliasView, headers(("ETag" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn retarget_alias(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<AliasId>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<RetargetAlias>,
) -> Result<Response, Problem> {
    let command = AliasCommand::Retarget { targets: targets(&body.targets) };
    single::<Alias, _>(&app, &admin.caller, (headers, &digest), (id, command), |alias| {
        Reply::ok(alias.map(AliasView::from))
    })
    .await
}
