//! Around every operation: metrics by route, limits on time and number, panics as problems, and answers where nothing is served.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use weir_schemas::error_class::ErrorClass;

use super::App;
use super::problem::Problem;
use crate::metrics::{RequestLabels, RouteLabels};

/// Longer than any statement may take: what is not answered by then waits for a database that hangs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Far more than the database's connections: the rest would only wait, each holding a body.
pub(crate) const REQUESTS_IN_PROGRESS_MAX: usize = 256;

/// Nothing is served here.
pub(super) async fn not_found() -> Problem {
    Problem::absent("route")
}

/// Something is, but not by this method.
pub(super) async fn method_not_allowed() -> Problem {
    Problem::invalid("this route has no such method")
        .with_status(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
}

/// Puts the layers around `router`.
pub(super) fn around(router: Router<App>, app: App) -> Router<App> {
    router.layer(CatchPanicLayer::custom(panicked)).layer(from_fn_with_state(app, measure))
}

/// The panic hook has logged it; its text may hold anything and is not shown.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::of(ErrorClass::Internal, "an internal error; see the control plane's log").into_response()
}

/// Why nothing is done for this route now.
fn obstacle(app: &App, route: &str) -> Option<&'static str> {
    if !needs_database(route) {
        None
    } else if app.stopping.is_cancelled() {
        Some("this control plane is stopping")
    } else if !*app.prepared.borrow() {
        Some("the control plane waits for its database")
    } else {
        None
    }
}

fn unavailable(why: &'static str) -> Response {
    Problem::of(ErrorClass::Unavailable, why).into_response()
}

/// What is answered while the database has never been there.
fn needs_database(route: &str) -> bool {
    !matches!(route, "/healthz" | "/readyz" | "/metrics" | "/openapi.yaml" | "unmatched")
}

async fn measure(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let method = request.method().as_str();
    // The method is the client's text: anything but the usual ones is counted together.
    let method = match method {
        "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS" => method.to_owned(),
        _ => "OTHER".to_owned(),
    };
    let begun = Instant::now();
    // Liveness is answered whatever else there is to do.
    let permit = (route != "/healthz").then(|| app.in_progress.try_acquire());
    if matches!(permit, Some(Err(_))) {
        return Problem::of(ErrorClass::Capacity, "too many requests in progress").into_response();
    }
    let response = match obstacle(&app, &route) {
        Some(why) => unavailable(why),
        None => tokio::time::timeout(REQUEST_TIMEOUT, next.run(request))
            .await
            .unwrap_or_else(|_| unavailable("the database did not answer in time")),
    };
    let labels = RouteLabels { method: method.clone(), route: route.clone() };
    app.metrics.request_seconds.get_or_create(&labels).observe(begun.elapsed().as_secs_f64());
    let labels = RequestLabels { method, route, status: response.status().as_u16() };
    app.metrics.requests.get_or_create(&labels).inc();
    response
}
