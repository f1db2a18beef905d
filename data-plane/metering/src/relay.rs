//! The relay: a cursor over the record log that delivers batches for ever and hears the ledger's watermark.
//!
//! Retention follows the watermark, never the delivery: what a transport acknowledged but the ledger does not have
//! is sent again. What the ledger lacks and the log has deleted (a ledger restored from an old backup) is reported to
//! it as lost, so that it is listed there and the watermark moves on.

mod metrics;
mod transport;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_schemas::records::DAMAGED_TOPIC;

pub use metrics::RelayMetrics;
pub use transport::{Delivery, Transport, TransportError};

use crate::cursor::{Cursor, LogRecord};
use crate::error::LogError;
use crate::log::{RecordLog, damaged_payload};

/// How often gauges are refreshed while nothing moves.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// Bounds of a relay.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Records in one batch. Default 500: a few milliseconds of the ledger's transaction.
    pub batch_records: usize,
    /// Payload bytes in one batch. Default 1 MiB, a quarter of what the ledger accepts in one message.
    pub batch_bytes: usize,
    /// First wait after a failed delivery; doubled until `backoff_max`.
    pub backoff_min: Duration,
    /// Longest wait between tries; how late the backlog starts to drain when the ledger is back.
    pub backoff_max: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            batch_records: 500,
            batch_bytes: 1 << 20,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}

/// The ledger did not confirm everything in time; the rest stays in the log for the next start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pending} records are not confirmed by the ledger yet; they stay in the log")]
pub struct FlushError {
    /// Records above the watermark.
    pub pending: u64,
}

/// A running relay. Ends when the token it was started with is cancelled.
#[derive(Debug)]
pub struct Relay {
    log: Arc<RecordLog>,
    task: JoinSet<()>,
}

impl Relay {
    /// Starts relaying on the current tokio runtime, until `cancel`. Cancel only after [`Relay::flush`].
    pub fn start(
        log: Arc<RecordLog>,
        transport: Transport,
        options: RelayOptions,
        metrics: RelayMetrics,
        cancel: CancellationToken,
    ) -> Self {
        let cursor = log.cursor();
        let log_of_worker = Arc::clone(&log);
        let worker =
            Worker { log: log_of_worker, cursor, transport, options, metrics, rewound: None, lost: 0..0 };
        let mut task = JoinSet::new();
        task.spawn(async move {
            cancel.run_until_cancelled(worker.run()).await;
        });
        Self { log, task }
    }

    /// Waits until the ledger has every record written so far, at most until `deadline`.
    pub async fn flush(&self, deadline: Instant) -> Result<(), FlushError> {
        if let Err(error) = self.log.sync() {
            tracing::error!(error = &error as &dyn std::error::Error, "the record log cannot be synced");
        }
        let last = self.log.stats().last_sequence;
        let mut watermark = self.log.shared.watermark.subscribe();
        let reached = watermark.wait_for(|&watermark| watermark >= last);
        match tokio::time::timeout_at(deadline, reached).await {
            Ok(_) => Ok(()),
            Err(_) => Err(FlushError { pending: last.saturating_sub(*self.log.shared.watermark.borrow()) }),
        }
    }

    /// Waits for the end after cancellation.
    pub async fn stopped(mut self) {
        if let Some(Err(error)) = self.task.join_next().await {
            tracing::error!(error = &error as &dyn std::error::Error, "the relay ended abnormally");
        }
    }
}

struct Worker {
    log: Arc<RecordLog>,
    cursor: Cursor,
    transport: Transport,
    options: RelayOptions,
    metrics: RelayMetrics,
    /// The watermark that the cursor was last rewound to; once is enough for each.
    rewound: Option<u64>,
    /// Sequences that the ledger lacks and the log no longer has.
    lost: Range<u64>,
}

impl Worker {
    async fn run(mut self) {
        let mut durable = self.log.shared.durable.subscribe();
        // An empty batch asks where the ledger is before anything is sent.
        let mut batch = Vec::new();
        loop {
            self.deliver(&batch).await;
            batch = loop {
                if !self.lost.is_empty() {
                    break self.lost_records();
                }
                durable.mark_unchanged();
                match self.cursor.read(self.options.batch_records, self.options.batch_bytes) {
                    Ok(batch) if !batch.is_empty() => break batch,
                    Ok(_) => {}
                    Err(error) => self.read_failed(&error),
                }
                self.metrics.show(&self.log.stats());
                // The log outlives this worker, which holds it, so the only outcomes are news and the interval.
                drop(tokio::time::timeout(GAUGE_INTERVAL, durable.changed()).await);
            };
        }
    }

    /// Delivers until it is acknowledged, however long that takes.
    async fn deliver(&mut self, batch: &[LogRecord]) {
        let mut wait = self.options.backoff_min;
        let mut failures = 0u64;
        loop {
            self.metrics.show(&self.log.stats());
            match self.transport.deliver(self.log.sender_id(), batch).await {
                Ok(delivery) => {
                    if failures > 0 {
                        tracing::info!(failures, "the record log is relayed again");
                    }
                    self.metrics.delivered(batch.len());
                    self.acknowledged(batch, delivery);
                    return;
                }
                Err(error) => {
                    failures += 1;
                    self.metrics.failed();
                    let cause = &error as &dyn std::error::Error;
                    // Loud at first, then once in a while: an outage must not fill the disk with its own logs.
                    if failures.is_power_of_two() {
                        tracing::warn!(error = cause, failures, ?wait, "records wait for the ledger");
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(self.options.backoff_max);
        }
    }

    fn acknowledged(&mut self, batch: &[LogRecord], delivery: Delivery) {
        self.log.set_watermark(delivery.watermark);
        self.metrics.show(&self.log.stats());
        let last = batch.iter().map(|record| record.sequence).max();
        if last.is_some_and(|last| delivery.watermark < last) && self.rewound != Some(delivery.watermark) {
            tracing::warn!(
                watermark = delivery.watermark,
                sent = last,
                "the ledger lacks records before those just sent; they are sent again"
            );
            self.rewound = Some(delivery.watermark);
            self.cursor.rewind(delivery.watermark);
            self.lost = delivery.watermark + 1..self.log.oldest_sequence();
            if !self.lost.is_empty() {
                tracing::error!(sequences = ?self.lost, "the ledger lost records that this log has deleted already");
            }
        }
    }

    /// The next batch of reports of what nobody has any more.
    fn lost_records(&mut self) -> Vec<LogRecord> {
        let sender_id = self.log.sender_id();
        let report = |sequence| LogRecord {
            sequence,
            topic: DAMAGED_TOPIC.to_owned(),
            key: String::new(),
            payload: damaged_payload(sender_id, sequence).to_string().into_bytes(),
        };
        self.lost.by_ref().take(self.options.batch_records).map(report).collect()
    }

    fn read_failed(&self, error: &LogError) {
        self.metrics.failed();
        tracing::error!(
            error = error as &dyn std::error::Error,
            "the record log cannot be read; trying again"
        );
    }
}
