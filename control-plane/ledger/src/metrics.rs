//! What operators watch of the ledger.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::batch::Applied;
use crate::incoming::DeadReason;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counters and gauges of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    records: Counter,
    resent: Counter,
    dead_letters: Family<ReasonLabel, Counter>,
    unpriced: Gauge<i64, AtomicI64>,
    batch_seconds: Histogram,
    postgres_up: Gauge<i64, AtomicI64>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            records: Counter::default(),
            resent: Counter::default(),
            dead_letters: Family::default(),
            unpriced: Gauge::default(),
            batch_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            postgres_up: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("weir_ledger");
        registry.register("records", "Records taken in", metrics.records.clone());
        registry.register("resent_records", "Records that were there already", metrics.resent.clone());
        registry.register(
            "dead_letters",
            "Records kept aside: alert on any increase",
            metrics.dead_letters.clone(),
        );
        registry.register("unpriced_records", "Records that wait for a price", metrics.unpriced.clone());
        registry.register("batch_seconds", "Time to commit a batch", metrics.batch_seconds.clone());
        registry.register("postgres_up", "Whether Postgres answered last", metrics.postgres_up.clone());
        metrics
    }

    pub(crate) fn applied(&self, applied: &Applied, seconds: f64) {
        self.records.inc_by(applied.accepted);
        self.resent.inc_by(applied.resent);
        for &reason in &applied.dead {
            self.dead_letter(reason);
        }
        self.batch_seconds.observe(seconds);
    }

    pub(crate) fn dead_letter(&self, reason: DeadReason) {
        self.dead_letters.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    pub(crate) fn unpriced(&self, waiting: i64) {
        self.unpriced.set(waiting);
    }

    pub(crate) fn postgres_up(&self, up: bool) {
        self.postgres_up.set(i64::from(up));
    }
}
