//! `GET /v1/models` and `GET /v1/models/{model}`: the aliases of the config in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use weir_schemas::config_snapshot::Alias;

use super::router::Edge;
use crate::authenticate::authenticate;
use crate::error::GatewayError;
use crate::indexed_config::IndexedConfig;

#[derive(Debug, Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: i64,
    owned_by: &'static str,
    /// What its ready replicas run on, in alphabetical order; `sim` means that answers are noise.
    device: BTreeSet<String>,
    status: Status,
    /// Median time to first token of the last five minutes at this gateway; null without one.
    p50_ttft_ms: Option<f64>,
    /// Requests that this gateway has under way.
    inflight: i64,
}

/// Whether a request would be taken now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ready,
    /// No replica is ready: a request would be told when to come again.
    Warming,
}

#[derive(Debug, Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

pub(super) async fn list(
    State(edge): State<Arc<Edge>>,
    headers: HeaderMap,
) -> Result<Json<ModelList>, GatewayError> {
    let config = authenticated(&edge, &headers)?;
    let served = config.aliases().filter(|alias| is_served(&config, alias));
    let data = served.map(|alias| model(&edge, &config, alias)).collect();
    Ok(Json(ModelList { object: "list", data }))
}

pub(super) async fn retrieve(
    State(edge): State<Arc<Edge>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Model>, GatewayError> {
    let config = authenticated(&edge, &headers)?;
    let alias = config.alias(&name).filter(|alias| is_served(&config, alias));
    alias.map(|alias| Json(model(&edge, &config, alias))).ok_or(GatewayError::UnknownModel { model: name })
}

pub(super) fn authenticated(edge: &Edge, headers: &HeaderMap) -> Result<Arc<IndexedConfig>, GatewayError> {
    let config = edge.config.load();
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    authenticate(&config, authorization, edge.clock.now())?;
    Ok(config)
}

/// An alias of which no version exists would be a 404 if it were asked for.
pub(super) fn is_served(config: &IndexedConfig, alias: &Alias) -> bool {
    alias.targets.iter().any(|target| target.weight > 0 && config.version(target.version).is_some())
}

fn model(edge: &Edge, config: &IndexedConfig, alias: &Alias) -> Model {
    let loads = edge.pipeline.registry.ready_loads(config, alias);
    Model {
        id: alias.name.clone(),
        object: "model",
        created: alias.created_at.timestamp(),
        owned_by: "weir",
        status: if loads.is_empty() { Status::Warming } else { Status::Ready },
        p50_ttft_ms: edge.metrics.recent.latencies(&alias.name, edge.clock.now()).ttft_p50_ms,
        inflight: edge.metrics.inflight_now(&alias.name),
        device: loads.into_iter().map(|load| load.device).collect(),
    }
}
