//! The relay: a cursor over the record log that delivers batches for ever and hears the ledger's watermark.
//!
//! Retention follows the watermark, never the delivery: what a transport acknowledged but the ledger does not have
//! is sent again. What the ledger lacks and the log has deleted (a ledger restored from an old backup) is reported to
//! it as lost, so that it is listed there and the watermark moves on.

mod kafka;
mod ledger;
mod metrics;
mod rewinds;
mod standing;
mod transport;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use kafka::KafkaTransport;
pub use ledger::Ledger;
pub use metrics::RelayMetrics;
pub use transport::{Transport, TransportError};

use crate::log::RecordLog;
use standing::Questions;
use worker::Worker;

/// How often the ledger is asked while someone waits for it.
const HURRY_INTERVAL: Duration = Duration::from_millis(50);

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
    /// How long the ledger's watermark may stand still before a record that the broker has acknowledged until that is
    /// taken for lost and sent again; doubled each time until `patience_max`. A backstop: losses that the ledger sees
    /// it tells at once. Default 60 s, longer than a rebalance of its consumers.
    pub patience_min: Duration,
    /// Longest such time. Default 10 minutes.
    pub patience_max: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            batch_records: 500,
            batch_bytes: 1 << 20,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            patience_min: Duration::from_secs(60),
            patience_max: Duration::from_secs(600),
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
    hurry: Arc<Notify>,
    tasks: JoinSet<()>,
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
        let hurry = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let news = transport.ledger_to_ask().map(|ledger| {
            let (news, heard) = watch::channel(None);
            let (log, metrics, hurry) = (log.clone(), metrics.clone(), hurry.clone());
            let questions = Questions { ledger, log, metrics, news, hurry };
            let cancel = cancel.clone();
            tasks.spawn(async move {
                cancel.run_until_cancelled(questions.run()).await;
            });
            heard
        });
        tasks.spawn(Worker::new(log.clone(), transport, options, metrics, news).run(cancel));
        Self { log, hurry, tasks }
    }

    /// Waits until the ledger has every record written so far, at most until `deadline`.
    pub async fn flush(&self, deadline: Instant) -> Result<(), FlushError> {
        if let Err(error) = self.log.sync() {
            tracing::error!(error = &error as &dyn std::error::Error, "the record log cannot be synced");
        }
        let last = self.log.stats().last_sequence;
        let mut watermark = self.log.shared.watermark.subscribe();
        let reached = watermark.wait_for(|&watermark| watermark >= last);
        let hurry = async {
            loop {
                self.hurry.notify_one();
                tokio::time::sleep(HURRY_INTERVAL).await;
            }
        };
        let reached = async {
            tokio::select! {
                reached = reached => drop(reached),
                () = hurry => {}
            }
        };
        match tokio::time::timeout_at(deadline, reached).await {
            Ok(()) => Ok(()),
            Err(_) => Err(FlushError { pending: last.saturating_sub(*self.log.shared.watermark.borrow()) }),
        }
    }

    /// Waits for the end after cancellation.
    pub async fn stopped(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(error = &error as &dyn std::error::Error, "the relay ended abnormally");
            }
        }
    }
}
