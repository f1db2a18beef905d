//! `/healthz` says alive, `/readyz` says that a request would be served, `/metrics` is Prometheus's.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::router::Edge;

pub(super) async fn alive() -> &'static str {
    "ok\n"
}

pub(super) async fn ready(State(edge): State<Arc<Edge>>) -> Response {
    match edge.readiness() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

pub(super) async fn metrics(State(edge): State<Arc<Edge>>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    edge.refresh_gauges();
    ([(header::CONTENT_TYPE, OPEN_METRICS)], (edge.metrics_text)()).into_response()
}

impl Edge {
    /// Config is held, and some model is loaded where this gateway can reach it and can be tokenised for.
    pub(crate) fn readiness(&self) -> Result<(), &'static str> {
        if self.is_stopping() {
            return Err("stopping");
        }
        if self.pipeline.recorder.is_refusing() {
            return Err("the record log takes no new request: no room, or its disk failed");
        }
        let config = self.config.load();
        if config.versions().is_empty() {
            return Err("no config with a model yet");
        }
        let pipeline = &self.pipeline;
        let served = config.versions().iter().any(|version| {
            !pipeline.registry.ready(&config, version.id).is_empty()
                && pipeline.texts.get_built(version).is_some()
        });
        if served { Ok(()) } else { Err("no model is ready on a reachable worker") }
    }

    fn refresh_gauges(&self) {
        let connected = i64::try_from(self.pipeline.registry.connected()).unwrap_or(i64::MAX);
        self.metrics.replicas_connected.set(connected);
        self.metrics.config_position.set(self.config.load().revision().position);
    }
}
