//! `/metrics`, `/healthz` and `/readyz` of the processes that speak only gRPC otherwise.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::MetricsText;

/// OpenMetrics, as the encoder writes it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The section `[ops]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RawConfig {
    /// Address of the listener.
    pub(crate) listen: SocketAddr,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7390)) }
    }
}

/// Whether the process can do its work, and if not, why.
pub(crate) type ReadyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Serves until cancelled.
pub(crate) async fn start(
    config: &RawConfig,
    metrics: MetricsText,
    ready: ReadyProbe,
    tasks: &TaskTracker,
    cancel: CancellationToken,
) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("ops.listen: cannot listen on {}", config.listen))?;
    let address = listener.local_addr().context("the ops listener has no address")?;
    let served =
        axum::serve(listener, router(metrics, ready)).with_graceful_shutdown(cancel.cancelled_owned());
    tasks.spawn(async move {
        if let Err(error) = served.await {
            tracing::error!(%error, "the ops listener failed");
        }
    });
    Ok(address)
}

fn router(metrics: MetricsText, ready: ReadyProbe) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match ready() {
                    Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
                    Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
                }
            }),
        )
        .route(
            "/metrics",
            get(move || async move { ([(header::CONTENT_TYPE, METRICS_TYPE)], metrics()).into_response() }),
        )
}
