//! `DELETE /api/v1/platform/keys/{key_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::platform::{Platform, PlatformCommand, PlatformId};
use weir_schemas::ids::KeyId;

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// Revoke an operator's key; the last one in force stays.
#[utoipa::path(delete, path = "/api/v1/platform/keys/{key_id}", tag = "platform",
    params(("key_id" = String, Path)),
    responses((status = 204), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn revoke_platform_key(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(key): Path<KeyId>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    let command = PlatformCommand::RevokeKey { key, now: app.clock.now() };
    single::<Platform, _>(&app, &admin.caller, (headers, ""), (PlatformId, command), |_| Reply::done()).await
}
