//! `GET /healthz` and `GET /readyz`

use axum::extract::State;
use axum::http::StatusCode;

use crate::http::App;
use crate::http::problem::Problem;
use weir_schemas::error_class::ErrorClass;

/// Whether the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = String)), security(()))]
pub(crate) async fn healthz() -> &'static str {
    "alive"
}

/// Whether reads and writes are answered: the database is there, and no stop was asked for. If not, the detail says why.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, body = String), (status = 503, description = "The database is away, or the process stops")), security(()))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<(StatusCode, &'static str), Problem> {
    let away = |why: &str| Err(Problem::of(ErrorClass::Unavailable, why));
    if app.stopping.is_cancelled() {
        return away("stopping");
    }
    if !*app.prepared.borrow() {
        return away("waiting for the database, which has not been there since the start");
    }
    if let Some(reason) = app.store.away() {
        return away(&format!("the database is away: {reason}"));
    }
    app.store.ping().await?;
    Ok((StatusCode::OK, "ready"))
}
