//! `GET /api/v1/aliases/{alias_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::alias::Alias;
use weir_schemas::ids::AliasId;

use super::AliasView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show an alias, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/aliases/{alias_id}", tag = "aliases",
    params(("alias_id" = String, Path), AsOfQuery),
    responses((status = 200, body = AliasView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_alias(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<AliasId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<Alias, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| AliasView::from(state)).await
}
