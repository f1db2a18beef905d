//! The relay's own task: batches out, watermarks in.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_schemas::records::{DAMAGED_TOPIC, DamagedRecord};

use super::RelayOptions;
use super::metrics::RelayMetrics;
use super::rewinds::{Rewinds, Standing};
use super::standing::News;
use super::transport::Transport;
use crate::cursor::{Cursor, LogRecord};
use crate::log::{Durable, RecordLog};

/// How often gauges are refreshed while nothing moves.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a ledger that has to be asked is given to answer before anything is sent. One that is away does not hold
/// the records up.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct Worker {
    log: Arc<RecordLog>,
    cursor: Cursor,
    /// News of what can be read.
    durable: watch::Receiver<Durable>,
    transport: Transport,
    options: RelayOptions,
    metrics: RelayMetrics,
    /// Where the ledger has to be asked how far it is.
    news: Option<News>,
    rewinds: Rewinds,
    /// The last sequence that the transport has acknowledged since the last rewind.
    sent: u64,
    /// Sequences that the ledger lacks and the log no longer has.
    lost: Range<u64>,
}

impl Worker {
    pub(super) fn new(
        log: Arc<RecordLog>,
        transport: Transport,
        options: RelayOptions,
        metrics: RelayMetrics,
        news: Option<News>,
    ) -> Self {
        let RelayOptions { patience_min, patience_max, .. } = options;
        let rewinds = match news {
            Some(_) => Rewinds::patient(patience_min, patience_max),
            None => Rewinds::at_once(patience_min, patience_max),
        };
        let sent = log.stats().watermark;
        let (cursor, durable) = (log.cursor(), log.shared.durable.subscribe());
        Self { log, cursor, durable, transport, options, metrics, news, rewinds, sent, lost: 0..0 }
    }

    pub(super) async fn run(mut self, cancel: CancellationToken) {
        cancel.run_until_cancelled(self.relay()).await;
        self.transport.close().await;
    }

    async fn relay(&mut self) {
        match &mut self.news {
            // Whatever it says, also that it does not answer, is dealt with in the loop.
            Some(news) => {
                drop(tokio::time::timeout(FIRST_ANSWER_TIMEOUT, news.changed()).await);
                news.mark_changed();
            }
            // An empty batch asks where the ledger is before anything is sent.
            None => self.deliver(&[]).await,
        }
        loop {
            self.hear_news();
            let batch = self.next_batch();
            if batch.is_empty() {
                self.metrics.show(&self.log.stats());
                self.wait().await;
            } else {
                self.deliver(&batch).await;
            }
        }
    }

    /// What goes out next, ascending by sequence; empty when there is nothing.
    fn next_batch(&mut self) -> Vec<LogRecord> {
        if !self.lost.is_empty() {
            return self.lost_records();
        }
        self.durable.mark_unchanged();
        match self.cursor.read(self.options.batch_records, self.options.batch_bytes) {
            Ok(mut batch) => {
                batch.sort_unstable_by_key(|record| record.sequence);
                batch
            }
            Err(error) => {
                self.metrics.failed();
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the record log cannot be read; trying again"
                );
                Vec::new()
            }
        }
    }

    /// Until there may be something to do. The log and the questions outlive this, so that the only outcomes are news
    /// and the interval.
    async fn wait(&mut self) {
        let heard = async {
            if let Some(news) = &mut self.news
                && news.changed().await.is_ok()
            {
                news.mark_changed();
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = self.durable.changed() => {}
            () = heard => {}
            () = tokio::time::sleep(GAUGE_INTERVAL) => {}
        }
    }

    /// Delivers until it is acknowledged, however long that takes.
    async fn deliver(&mut self, batch: &[LogRecord]) {
        let mut wait = self.options.backoff_min;
        let mut failures = 0u64;
        loop {
            self.metrics.show(&self.log.stats());
            match self.transport.deliver(self.log.sender_id(), batch).await {
                Ok(standing) => {
                    if failures > 0 {
                        tracing::info!(failures, "the record log is relayed again");
                        self.rewinds.restart_clock(Instant::now().into_std());
                    }
                    self.acknowledged(batch, standing);
                    return;
                }
                Err(error) => {
                    failures += 1;
                    self.metrics.failed();
                    let cause = &error as &dyn std::error::Error;
                    // Loud at first, then once in a while: an outage must not fill the disk with its own logs.
                    if failures.is_power_of_two() {
                        tracing::warn!(error = cause, failures, ?wait, "records wait in the log");
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(self.options.backoff_max);
        }
    }

    fn acknowledged(&mut self, batch: &[LogRecord], standing: Option<Standing>) {
        self.metrics.delivered(batch.len());
        self.sent = batch.last().map_or(self.sent, |record| record.sequence);
        if let Some(standing) = standing {
            self.log.set_watermark(standing.watermark);
            self.heard(standing);
        }
        self.metrics.show(&self.log.stats());
    }

    fn hear_news(&mut self) {
        let Some(news) = &mut self.news else { return };
        if !news.has_changed().unwrap_or(false) {
            return;
        }
        let standing = *news.borrow_and_update();
        match standing {
            Some(standing) => self.heard(standing),
            None => self.rewinds.restart_clock(Instant::now().into_std()),
        }
    }

    /// The ledger has said how far it is.
    fn heard(&mut self, standing: Standing) {
        let Some(rewind) = self.rewinds.due(standing, self.sent, Instant::now().into_std()) else { return };
        let Standing { watermark, generation } = standing;
        tracing::warn!(
            watermark,
            generation,
            sent = self.sent,
            "the ledger lacks records before those just sent; they are sent again"
        );
        self.metrics.rewound();
        self.cursor.rewind(watermark);
        self.sent = watermark;
        self.lost = match rewind.rest_is_lost {
            true => watermark + 1..self.log.oldest_sequence(),
            false => 0..0,
        };
        if !self.lost.is_empty() {
            tracing::error!(sequences = ?self.lost, "the ledger lost records that this log has deleted already");
        }
    }

    /// The next batch of reports of what nobody has any more.
    fn lost_records(&mut self) -> Vec<LogRecord> {
        let sender_id = self.log.sender_id();
        let report = |sequence| LogRecord {
            sequence,
            topic: DAMAGED_TOPIC.to_owned(),
            key: String::new(),
            payload: serde_json::to_vec(&DamagedRecord::new(sender_id, sequence))
                .expect("two strings and a number"),
        };
        self.lost.by_ref().take(self.options.batch_records).map(report).collect()
    }
}
