//! `GET /v1/metrics/serving?model=`: how a model is served now, for callers that decide by it.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::models::{authenticated, is_served};
use super::router::Edge;
use crate::error::GatewayError;
use crate::openai::ParameterError;
use crate::routing::num_waiting;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    model: String,
}

/// Null where nothing was measured. Latencies are of the last five minutes.
#[derive(Debug, Serialize)]
pub(super) struct Serving {
    model: String,
    ttft_p50_ms: Option<f64>,
    ttft_p99_ms: Option<f64>,
    tpot_p50_ms: Option<f64>,
    /// Percent of the time that the replicas' devices had a step to run, over the last ten seconds or so.
    gpu_util: Option<f64>,
    /// Percent of KV pages that running sequences hold.
    kv_cache_used_pct: Option<f64>,
    /// Sequences that wait for a seat.
    queue_depth: u64,
}

pub(super) async fn serving(
    State(edge): State<Arc<Edge>>,
    query: Result<Query<Asked>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<Serving>, GatewayError> {
    let config = authenticated(&edge, &headers)?;
    let Query(Asked { model }) = query.map_err(|_| ParameterError::missing("model"))?;
    let Some(alias) = config.alias(&model).filter(|alias| is_served(&config, alias)) else {
        return Err(GatewayError::UnknownModel { model });
    };
    let loads = edge.pipeline.registry.ready_loads(&config, alias);
    let latencies = edge.metrics.recent.latencies(&model, edge.clock.now());
    let pages: u64 = loads.iter().map(|load| load.pages).sum();
    let referenced: u64 = loads.iter().map(|load| load.pages_referenced).sum();
    let busy: f64 = loads.iter().map(|load| load.device_busy).sum();
    let percent = |part: f64, of: f64| (of > 0.0).then(|| (part / of * 10_000.0).round() / 100.0);
    #[expect(clippy::cast_precision_loss, reason = "percentages for people")]
    let (kv_cache_used_pct, gpu_util) =
        (percent(referenced as f64, pages as f64), percent(busy, loads.len() as f64));
    Ok(Json(Serving {
        model,
        ttft_p50_ms: latencies.ttft_p50_ms,
        ttft_p99_ms: latencies.ttft_p99_ms,
        tpot_p50_ms: latencies.tpot_p50_ms,
        gpu_util,
        kv_cache_used_pct,
        queue_depth: loads.iter().map(num_waiting).sum(),
    }))
}
