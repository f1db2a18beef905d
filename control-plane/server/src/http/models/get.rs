//! `GET /api/v1/models/{model_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::model::Model;
use weir_schemas::ids::ModelId;

use super::ModelView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a model, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/models/{model_id}", tag = "models",
    params(("model_id" = String, Path), AsOfQuery),
    responses((status = 200, body = ModelView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_model(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<ModelId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<Model, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| ModelView::from(state)).await
}
