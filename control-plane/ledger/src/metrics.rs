//! What operators watch of the ledger.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use weir_schemas::kafka::Topic;

use crate::batch::Applied;
use crate::incoming::DeadReason;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TopicLabel {
    topic: &'static str,
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
    kafka_up: Gauge<i64, AtomicI64>,
    kafka_behind: Family<TopicLabel, Gauge<i64, AtomicI64>>,
    fenced: Counter,
    orphans: Counter,
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
            kafka_up: Gauge::default(),
            kafka_behind: Family::default(),
            fenced: Counter::default(),
            orphans: Counter::default(),
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
        registry.register(
            "kafka_up",
            "Whether Kafka answered last; 0 also where none is configured",
            metrics.kafka_up.clone(),
        );
        registry.register(
            "kafka_records_behind",
            "Records in the partitions that this ledger reads and has not taken",
            metrics.kafka_behind.clone(),
        );
        registry.register(
            "fenced_batches",
            "Batches given up because another ledger took their partitions over",
            metrics.fenced.clone(),
        );
        registry.register(
            "requests_charged_from_executions",
            "Requests without a charge record: a gateway was lost with its disk",
            metrics.orphans.clone(),
        );
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

    pub(crate) fn fenced(&self) {
        self.fenced.inc();
    }

    pub(crate) fn orphans(&self, charged: u64) {
        self.orphans.inc_by(charged);
    }

    pub(crate) fn kafka_up(&self, up: bool) {
        self.kafka_up.set(i64::from(up));
    }

    /// Records not taken, partition by partition; of a topic without one here, none.
    pub(crate) fn behind(&self, partitions: impl Iterator<Item = (&'static str, i64)>) {
        let mut topics: BTreeMap<&'static str, i64> =
            Topic::RECORDS.into_iter().map(|topic| (topic.name(), 0)).collect();
        for (topic, behind) in partitions {
            *topics.entry(topic).or_default() += behind;
        }
        for (topic, behind) in topics {
            self.kafka_behind.get_or_create(&TopicLabel { topic }).set(behind);
        }
    }

    pub(crate) fn postgres_up(&self, up: bool) {
        self.postgres_up.set(i64::from(up));
    }
}
