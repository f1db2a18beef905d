//! `DELETE /api/v1/tenants/{tenant_id}/keys/{key_id}`
//!
//! The key leaves the allow-list with this transaction; the publisher sends the shorter list to every gateway, which
//! refuses the key from then on.

use axum::extract::State;
use axum::response::Response;
use weir_domain::tenant::{Tenant, TenantCommand};
use weir_schemas::ids::KeyId;

use crate::auth::{KeysWrite, TenantCaller};
use crate::http::App;
use crate::http::extract::{Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// Revoke a key. Gateways refuse it within a second; doing it twice changes nothing.
#[utoipa::path(delete, path = "/api/v1/tenants/{tenant_id}/keys/{key_id}", tag = "keys",
    params(("tenant_id" = String, Path), ("key_id" = String, Path)),
    responses((status = 204), ReadProblems, WriteProblems),
    security(("token" = ["keys:write"]), ("token" = ["platform:admin"])))]
pub(crate) async fn revoke_key(
    caller: TenantCaller<KeysWrite>,
    State(app): State<App>,
    Path(key): Path<KeyId>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    let command = TenantCommand::RevokeKey { key, now: app.clock.now() };
    let tenant = caller.scope.tenant();
    single::<Tenant, _>(&app, &caller.caller, (headers, ""), (tenant, command), |_| Reply::done()).await
}
