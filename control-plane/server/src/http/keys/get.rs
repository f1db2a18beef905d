//! `GET /api/v1/tenants/{tenant_id}/keys/{key_id}`

use axum::Json;
use axum::extract::State;
use weir_schemas::ids::KeyId;

use super::KeyView;
use crate::auth::{KeysWrite, TenantCaller};
use crate::http::App;
use crate::http::extract::Path;
use crate::http::problem::Problem;
use crate::http::schema::ReadProblems;

/// Show a key, without its token.
#[utoipa::path(get, path = "/api/v1/tenants/{tenant_id}/keys/{key_id}", tag = "keys",
    params(("tenant_id" = String, Path), ("key_id" = String, Path)),
    responses((status = 200, body = KeyView), ReadProblems),
    security(("token" = ["keys:write"]), ("token" = ["platform:admin"])))]
pub(crate) async fn get_key(
    caller: TenantCaller<KeysWrite>,
    State(app): State<App>,
    Path(id): Path<KeyId>,
) -> Result<Json<KeyView>, Problem> {
    let row = app.store.key(caller.scope, id).await?;
    row.map(|row| Json(row.into())).ok_or_else(|| Problem::absent("key"))
}
