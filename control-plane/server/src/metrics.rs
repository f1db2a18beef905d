//! What the control plane measures about itself.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Control writes take a millisecond or a few; half a second means that the log's lock has become a bottleneck.
const SECONDS_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// One route's requests by outcome. The route is the pattern, never the path, so that the number is bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) method: String,
    pub(crate) route: String,
    pub(crate) status: u16,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabels {
    pub(crate) method: String,
    pub(crate) route: String,
}

/// One kind of node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NodeLabels {
    pub(crate) kind: &'static str,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS_BUCKETS)
}

/// All of them; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) request_seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    pub(crate) event_lock_hold_seconds: Histogram,
    pub(crate) config_epoch: Gauge,
    pub(crate) config_position: Gauge,
    pub(crate) connected_nodes: Family<NodeLabels, Gauge>,
    pub(crate) event_relay_position: Gauge,
}

impl Metrics {
    /// Makes them and registers them under `weir_control_plane_`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            event_lock_hold_seconds: seconds(),
            config_epoch: Gauge::default(),
            config_position: Gauge::default(),
            connected_nodes: Family::default(),
            event_relay_position: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("weir_control_plane");
        registry.register("requests", "HTTP requests by route and status", metrics.requests.clone());
        registry.register("request_seconds", "HTTP latency by route", metrics.request_seconds.clone());
        registry.register(
            "event_lock_hold_seconds",
            "How long the event log's lock was held by one write",
            metrics.event_lock_hold_seconds.clone(),
        );
        registry.register("config_epoch", "Epoch of the published config", metrics.config_epoch.clone());
        registry.register(
            "config_position",
            "Position of the last event in the published config",
            metrics.config_position.clone(),
        );
        registry.register(
            "connected_nodes",
            "Nodes on the config stream by kind",
            metrics.connected_nodes.clone(),
        );
        registry.register(
            "event_relay_position",
            "Position of the last event that this process relayed to Kafka",
            metrics.event_relay_position.clone(),
        );
        metrics
    }
}
