//! What a gateway must have in hand before it takes a request: its record log, what the last run left open there
//! closed, what was used in the minutes before, and the answers that it keeps.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_metering::{LogOptions, RecordLog};
use weir_schemas::clock::Clock;
use weir_schemas::ids::GatewayId;

use super::StartError;
use crate::admission::{HISTORY_WINDOW, History};
use crate::config::Config;
use crate::idempotency::Store;
use crate::metrics::Metrics;
use crate::record::{Recorder, past_use};
use crate::rejections::Rejections;

/// The record log and what is written to, and read from it.
pub(super) struct Books {
    pub(super) log: Arc<RecordLog>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) rejections: Arc<Rejections>,
    pub(super) history: History,
    pub(super) answers: Arc<Store>,
}

impl Books {
    /// Opens the log, waiting while its disk is full.
    pub(super) async fn open(
        config: &Config,
        gateway: GatewayId,
        clock: &Clock,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let options = LogOptions {
            max_bytes: config.record_log_max_bytes,
            // A limit's bucket fills in a minute, so two tell where it stood.
            keep_recent: HISTORY_WINDOW / 5,
            ..LogOptions::new(gateway.to_string())
        };
        let opened = RecordLog::open_waiting(config.data_dir.join("records"), options, stop).await;
        let (log, unclosed) = opened.map_err(StartError::RecordLog)?;
        let recorder = Arc::new(Recorder::new(gateway, clock.clone(), log.clone(), metrics.clone()));
        recorder.close_recovered(unclosed);
        let (source, now) = (log.clone(), clock.now());
        let read = tokio::task::spawn_blocking(move || past_use(&source, now)).await;
        let history = read.map_err(|_| StartError::Thread)?.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the recent past cannot be read; every limit begins unused");
            History::default()
        });
        tracing::info!(
            requests = history.requests(),
            "limits go on from what the record log tells of the last minutes"
        );
        let rejections = Arc::new(Rejections::new(gateway, log.clone()));
        let (directory, max_bytes, clock) =
            (config.data_dir.join("answers"), config.idempotency_max_bytes, clock.clone());
        let path = directory.display().to_string();
        let opened = tokio::task::spawn_blocking(move || Store::open(directory, max_bytes, clock)).await;
        let answers = opened.map_err(|_| StartError::Thread)?;
        let answers = Arc::new(answers.map_err(|source| StartError::DataDir { path, source })?);
        Ok(Self { log, recorder, rejections, history, answers })
    }
}
