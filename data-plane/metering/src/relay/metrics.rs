//! What operators watch: depth and lag say that money is waiting, the watermark that it moves.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::log::LogStats;

/// Gauges and counters of one sender's log and relay.
#[derive(Debug, Clone, Default)]
pub struct RelayMetrics {
    depth: Gauge<i64, AtomicI64>,
    lag_seconds: Gauge<f64, AtomicU64>,
    watermark: Gauge<i64, AtomicI64>,
    sequence: Gauge<i64, AtomicI64>,
    used_bytes: Gauge<i64, AtomicI64>,
    held_bytes: Gauge<i64, AtomicI64>,
    max_bytes: Gauge<i64, AtomicI64>,
    open_entries: Gauge<i64, AtomicI64>,
    refusing: Gauge<i64, AtomicI64>,
    refused: Gauge<i64, AtomicI64>,
    delivered: Counter,
    failures: Counter,
    rewinds: Counter,
}

impl RelayMetrics {
    /// Registers them as `record_log_…`; where several senders share a process, give each a prefix
    /// (`registry.sub_registry_with_prefix("weir_gateway")`), as no name may be registered twice.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let mut gauge = |name: &str, help: &str, gauge: &Gauge<i64, AtomicI64>| {
            registry.register(name, help, gauge.clone());
        };
        gauge("record_log_depth", "Records that the ledger has not confirmed", &metrics.depth);
        gauge(
            "record_log_watermark",
            "Highest sequence up to which the ledger has everything",
            &metrics.watermark,
        );
        gauge("record_log_sequence", "Sequence of the last record written", &metrics.sequence);
        gauge("record_log_bytes", "Disk used by the record log", &metrics.used_bytes);
        gauge(
            "record_log_held_bytes",
            "Bytes held for the progress and close of open entries",
            &metrics.held_bytes,
        );
        gauge(
            "record_log_max_bytes",
            "Bound of record_log_bytes; new requests are refused there",
            &metrics.max_bytes,
        );
        gauge("record_log_open_entries", "Entries begun and not closed", &metrics.open_entries);
        gauge(
            "record_log_refusing",
            "1 while new requests are refused because the log or its disk has no room: alert",
            &metrics.refusing,
        );
        gauge("record_log_refused_entries", "Entries refused since the start", &metrics.refused);
        registry.register(
            "record_log_lag_seconds",
            "Age of the oldest record that the ledger has not confirmed",
            metrics.lag_seconds.clone(),
        );
        registry.register(
            "record_log_delivered",
            "Records acknowledged by the transport",
            metrics.delivered.clone(),
        );
        registry.register(
            "record_log_delivery_failures",
            "Deliveries or reads that failed",
            metrics.failures.clone(),
        );
        registry.register(
            "record_log_rewinds",
            "Times that acknowledged records were sent again because the ledger lacked them",
            metrics.rewinds.clone(),
        );
        metrics
    }

    pub(super) fn show(&self, stats: &LogStats) {
        let depth = stats.last_sequence.saturating_sub(stats.watermark);
        self.depth.set(clamp(depth));
        self.lag_seconds.set(stats.lag.as_secs_f64());
        self.watermark.set(clamp(stats.watermark));
        self.sequence.set(clamp(stats.last_sequence));
        self.used_bytes.set(clamp(stats.used_bytes));
        self.held_bytes.set(clamp(stats.held_bytes));
        self.max_bytes.set(clamp(stats.max_bytes));
        self.open_entries.set(i64::try_from(stats.open_entries).unwrap_or(i64::MAX));
        self.refusing.set(i64::from(stats.refusing));
        self.refused.set(clamp(stats.refused));
    }

    pub(super) fn delivered(&self, records: usize) {
        self.delivered.inc_by(records as u64);
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }

    pub(super) fn rewound(&self) {
        self.rewinds.inc();
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
