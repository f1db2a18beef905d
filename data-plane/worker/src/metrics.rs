//! What the worker shows to Prometheus. Latencies are separate histograms; what an engine holds are gauges with the
//! version as their label.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use weir_engine::StepReport;
use weir_schemas::ids::VersionId;
use weir_schemas::rpc::worker::Finished;

use crate::host::EngineStatus;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabel {
    version: String,
}

type Gauges = Family<VersionLabel, Gauge>;
type Counters = Family<VersionLabel, Counter>;
type Histograms = Family<VersionLabel, Histogram>;

/// From one millisecond to about a minute, in doublings.
const SECONDS_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
    32.768, 65.536,
];
/// From 12.5 microseconds to about 50 milliseconds, in doublings.
const HOST_SECONDS_BUCKETS: [f64; 13] = [
    0.000_012_5,
    0.000_025,
    0.000_05,
    0.000_1,
    0.000_2,
    0.000_4,
    0.000_8,
    0.001_6,
    0.003_2,
    0.006_4,
    0.012_8,
    0.025_6,
    0.051_2,
];
const ROWS_BUCKETS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

macro_rules! worker_metrics {
    (gauges { $($gauge:ident: $gauge_help:literal,)* } counters { $($counter:ident: $counter_help:literal,)* }) => {
        /// All families, shared by every engine of the process.
        #[derive(Debug, Clone)]
        pub(crate) struct Metrics {
            $($gauge: Gauges,)*
            $($counter: Counters,)*
            step_seconds: Histograms,
            step_host_seconds: Histograms,
            step_rows: Histograms,
            queue_seconds: Histograms,
            prefill_seconds: Histograms,
            decode_seconds: Histograms,
        }

        impl Metrics {
            /// Makes and registers them.
            pub(crate) fn new(registry: &mut Registry) -> Self {
                let metrics = Self {
                    $($gauge: Gauges::default(),)*
                    $($counter: Counters::default(),)*
                    step_seconds: seconds(),
                    step_host_seconds: Histograms::new_with_constructor(|| Histogram::new(HOST_SECONDS_BUCKETS)),
                    step_rows: Histograms::new_with_constructor(|| Histogram::new(ROWS_BUCKETS)),
                    queue_seconds: seconds(),
                    prefill_seconds: seconds(),
                    decode_seconds: seconds(),
                };
                $(registry.register(concat!("weir_worker_", stringify!($gauge)), $gauge_help, metrics.$gauge.clone());)*
                $(registry.register(concat!("weir_worker_", stringify!($counter)), $counter_help, metrics.$counter.clone());)*
                for (name, help, family) in [
                    ("step_seconds", "Time that one step had the device", &metrics.step_seconds),
                    ("step_host_seconds", "One step's collect to the next submit being in", &metrics.step_host_seconds),
                    ("step_rows", "Sequences computed in one step (batch occupancy)", &metrics.step_rows),
                    ("queue_seconds", "Arrival to first scheduled step", &metrics.queue_seconds),
                    ("prefill_seconds", "First scheduled step to first token", &metrics.prefill_seconds),
                    ("decode_seconds", "First token to last token", &metrics.decode_seconds),
                ] {
                    registry.register(format!("weir_worker_{name}"), help, family.clone());
                }
                metrics
            }

            /// The share of one engine.
            pub(crate) fn engine(&self, version: VersionId) -> EngineMetrics {
                let label = VersionLabel { version: version.to_string() };
                EngineMetrics {
                    $($gauge: self.$gauge.get_or_create_owned(&label),)*
                    $($counter: self.$counter.get_or_create_owned(&label),)*
                    step_seconds: self.step_seconds.get_or_create_owned(&label),
                    step_host_seconds: self.step_host_seconds.get_or_create_owned(&label),
                    step_rows: self.step_rows.get_or_create_owned(&label),
                    queue_seconds: self.queue_seconds.get_or_create_owned(&label),
                    prefill_seconds: self.prefill_seconds.get_or_create_owned(&label),
                    decode_seconds: self.decode_seconds.get_or_create_owned(&label),
                    counted: Counted::default(),
                }
            }
        }

        /// One engine's metrics; owned by its step loop.
        #[derive(Debug)]
        pub(crate) struct EngineMetrics {
            $($gauge: Gauge,)*
            $($counter: Counter,)*
            step_seconds: Histogram,
            step_host_seconds: Histogram,
            step_rows: Histogram,
            queue_seconds: Histogram,
            prefill_seconds: Histogram,
            decode_seconds: Histogram,
            counted: Counted,
        }

        /// The engine's totals as last shown: its counters only grow, and Prometheus wants increments.
        #[derive(Debug, Default)]
        struct Counted { $($counter: u64,)* }

        impl EngineMetrics {
            fn count(&mut self, totals: Counted) {
                $(self.$counter.inc_by(totals.$counter.saturating_sub(self.counted.$counter));)*
                self.counted = totals;
            }
        }
    };
}

worker_metrics! {
    gauges {
        running: "Sequences with a seat",
        waiting_interactive: "Interactive sequences that wait",
        waiting_batch: "Batch sequences that wait",
        kv_pages_free: "KV pages that hold nothing",
        kv_pages_cached: "KV pages kept for their prefix, as good as free",
        kv_pages_referenced: "KV pages that running sequences reference",
        queued_prefill_tokens: "Tokens to be computed before the next tokens of all sequences",
    }
    counters {
        steps: "Forward passes",
        rows: "Sequences computed, over all steps",
        prefill_tokens: "Tokens computed to catch up with prompts",
        recomputed_tokens: "The part of prefill_tokens that preemption had lost",
        cached_prompt_tokens: "Prompt tokens taken from the prefix cache",
        decode_tokens: "Tokens computed after a prompt was complete",
        generated_tokens: "Tokens sampled and counted",
        preemptions: "Sequences that lost their pages to others",
    }
}

impl EngineMetrics {
    /// One step.
    pub(crate) fn step(&self, report: &StepReport, elapsed: Duration) {
        if report.num_rows > 0 {
            self.step_seconds.observe(elapsed.as_secs_f64());
            self.step_rows.observe(f64::from(report.num_rows));
        }
    }

    /// What the host took between two steps.
    pub(crate) fn host(&self, elapsed: Duration) {
        self.step_host_seconds.observe(elapsed.as_secs_f64());
    }

    /// One sequence at its end.
    pub(crate) fn finished(&self, finished: &Finished) {
        #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
        let observe = |histogram: &Histogram, us: u64| histogram.observe(us as f64 / 1e6);
        observe(&self.queue_seconds, finished.queue_us);
        observe(&self.prefill_seconds, finished.prefill_us);
        observe(&self.decode_seconds, finished.decode_us);
    }

    /// What the engine holds and has counted.
    pub(crate) fn load(&mut self, status: &EngineStatus) {
        let (load, counters) = (&status.load, &status.counters);
        self.running.set(load.running.into());
        self.waiting_interactive.set(load.waiting_interactive.into());
        self.waiting_batch.set(load.waiting_batch.into());
        self.kv_pages_free.set(load.free_blocks.into());
        self.kv_pages_cached.set(load.cached_blocks.into());
        self.kv_pages_referenced.set(load.referenced_blocks.into());
        self.queued_prefill_tokens.set(i64::try_from(load.queued_prefill_tokens).unwrap_or(i64::MAX));
        self.count(Counted {
            steps: counters.steps,
            rows: counters.rows_sum,
            prefill_tokens: counters.prefill_tokens,
            recomputed_tokens: counters.recomputed_tokens,
            cached_prompt_tokens: counters.cached_prompt_tokens,
            decode_tokens: counters.decode_tokens,
            generated_tokens: counters.generated_tokens,
            preemptions: counters.preemptions,
        });
    }
}

fn seconds() -> Histograms {
    Histograms::new_with_constructor(|| Histogram::new(SECONDS_BUCKETS))
}
