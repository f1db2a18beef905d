//! `GET /healthz` and `GET /readyz`

use axum::extract::State;
use axum::http::StatusCode;

use crate::http::App;
use crate::http::problem::Problem;

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = String)), security(()))]
pub(crate) async fn healthz() -> &'static str {
    "alive"
}

/// Whether the database answers, so that writes can be taken.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = String), (status = 503, description = "The database is away")), security(()))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<(StatusCode, &'static str), Problem> {
    app.store.ping().await?;
    Ok((StatusCode::OK, "ready"))
}
