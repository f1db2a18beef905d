//! `DELETE /api/v1/aliases/{alias_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::alias::{Alias, AliasCommand};
use weir_schemas::ids::AliasId;

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// Take an alias away. Requests for the name get 404 from then on.
#[utoipa::path(delete, path = "/api/v1/aliases/{alias_id}", tag = "aliases",
    params(("alias_id" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on.")),
    responses((status = 204), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn delete_alias(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<AliasId>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    single::<Alias, _>(&app, &admin.caller, (headers, ""), (id, AliasCommand::Delete), |_| Reply::done())
        .await
}
