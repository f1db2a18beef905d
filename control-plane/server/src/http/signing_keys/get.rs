//! `GET /api/v1/signing-keys/{signing_key_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::signing_key::SigningKey;
use weir_schemas::ids::SigningKeyId;

use super::SigningKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a signing key's public part, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/signing-keys/{signing_key_id}", tag = "signing keys",
    params(("signing_key_id" = String, Path), AsOfQuery),
    responses((status = 200, body = SigningKeyView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn get_signing_key(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<SigningKeyId>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    one::<SigningKey, _>(&app, ReadScope::Platform(admin.scope), id, &as_of, |state| {
        SigningKeyView::from(state)
    })
    .await
}
