//! `POST /api/v1/signing-keys/{signing_key_id}/retire`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use weir_domain::signing_key::{SigningKey, SigningKeyCommand};
use weir_schemas::ids::SigningKeyId;

use super::SigningKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, Started, Write};

/// How to retire.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RetireQuery {
    /// Even though tokens signed with it are still good (a leaked key): they stop working.
    #[serde(default)]
    force: bool,
}

/// Stop verifying with a retiring key, once the last token signed with it has expired or was revoked.
#[utoipa::path(post, path = "/api/v1/signing-keys/{signing_key_id}/retire", tag = "signing keys",
    params(("signing_key_id" = String, Path), RetireQuery, ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on."), ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 200, body = SigningKeyView, headers(("ETag" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn retire_signing_key(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<SigningKeyId>,
    Query(query): Query<RetireQuery>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    let mut write = match Write::begin(&app, &admin.caller, headers, "").await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let tokens_until = write.transaction.tokens_until(id).await?;
    let command = SigningKeyCommand::Retire { tokens_until, force: query.force };
    let changed = write.execute::<SigningKey>(id, command).await?;
    let response =
        write.finish(changed.version, Reply::ok(changed.state.as_ref().map(SigningKeyView::from))).await?;
    // Where another control plane rotated, the private part may still lie here.
    app.signer.forget(id)?;
    Ok(response)
}
