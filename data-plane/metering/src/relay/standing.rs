//! Asks the ledger how far it is, where records go by another way than the ledger itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::ledger::Ledger;
use super::metrics::RelayMetrics;
use super::rewinds::Standing;
use crate::log::RecordLog;

/// How late the log is pruned and a loss is noticed; each question is one small read in the ledger.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// What the ledger said last; `None` while it does not answer. Each answer is news, also one that says the same.
pub(super) type News = watch::Receiver<Option<Standing>>;

/// The questions, until they are dropped.
pub(super) struct Questions {
    pub(super) ledger: Ledger,
    pub(super) log: Arc<RecordLog>,
    pub(super) metrics: RelayMetrics,
    pub(super) news: watch::Sender<Option<Standing>>,
    /// Someone waits for the watermark: ask now.
    pub(super) hurry: Arc<Notify>,
}

impl Questions {
    pub(super) async fn run(mut self) {
        let mut failures = 0u64;
        loop {
            match self.ledger.append(self.log.sender_id(), &[]).await {
                Ok(standing) => {
                    if failures > 0 {
                        tracing::info!(failures, "the ledger says again how far it is");
                    }
                    failures = 0;
                    self.log.set_watermark(standing.watermark);
                    self.news.send_replace(Some(standing));
                }
                Err(error) => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            failures,
                            "the ledger does not say how far it is; records are sent on and kept"
                        );
                    }
                    self.news.send_replace(None);
                }
            }
            self.metrics.show(&self.log.stats());
            // Either way it is time to ask again.
            drop(tokio::time::timeout(ASK_INTERVAL, self.hurry.notified()).await);
        }
    }
}
