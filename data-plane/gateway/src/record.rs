//! Stage 8, settle, the writing half: the charge record of a request in the record log. `open` before dispatch,
//! `progress` at least each second while tokens come, `close` exactly once; the close is the record.

mod past;

use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_metering::{LogError, OpenEntry, RecordLog, Unclosed};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{GatewayId, RequestId, VersionId, WorkerId};
use weir_schemas::records::{ChargeData, ChargeRecord, FinishReason, SloOutcome, USAGE_TOPIC};
use weir_schemas::rpc::worker::Finished;

use crate::metrics::Metrics;
use crate::routing::Arrivals;

pub(crate) use past::read as past_use;

/// Writes charge records.
#[derive(Debug)]
pub(crate) struct Recorder {
    gateway: GatewayId,
    clock: Clock,
    log: Arc<RecordLog>,
    metrics: Metrics,
}

/// What stands in the log while a request runs.
#[derive(Debug, Serialize, Deserialize)]
struct Opened {
    request: RequestId,
    /// As it would be charged if nothing had happened: no tokens.
    charge: ChargeData,
    /// Length of the whole prompt: charged once a token came.
    whole_prompt_tokens: u64,
}

/// How far a request has come.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    generated_tokens: u64,
    #[serde(default)]
    reasoning_tokens: u64,
    #[serde(default)]
    cached_prompt_tokens: u64,
    #[serde(default)]
    replicas: Vec<WorkerId>,
    at: DateTime<Utc>,
    ttft_us: Option<u64>,
    decode_us: u64,
}

/// A request that has been read and not opened. Dropped before it is opened or refused (its client went away while
/// it was being prepared), it is recorded as cancelled, with nothing to charge.
#[derive(Debug)]
pub(crate) struct Received {
    recorder: Arc<Recorder>,
    request: RequestId,
    charge: Option<ChargeData>,
}

/// A request that is open in the log.
#[derive(Debug)]
pub(crate) struct OpenRecord {
    recorder: Arc<Recorder>,
    request: RequestId,
    entry: OpenEntry,
    charge: ChargeData,
    whole_prompt_tokens: u64,
    arrived: Instant,
}

/// How a request ended, for its record.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    /// The engine's own counts; absent when the worker can no longer tell.
    pub(crate) finished: Option<Finished>,
    pub(crate) arrivals: Arrivals,
}

/// What was charged, and told to the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    /// Part of the generated ones.
    pub(crate) reasoning_tokens: u64,
}

impl Recorder {
    pub(crate) fn new(gateway: GatewayId, clock: Clock, log: Arc<RecordLog>, metrics: Metrics) -> Self {
        Self { gateway, clock, log, metrics }
    }

    /// New requests cannot be opened at the moment.
    pub(crate) fn is_refusing(&self) -> bool {
        self.log.stats().refusing
    }

    /// Closes what the previous run left open, from its last progress: its clients were cut off.
    pub(crate) fn close_recovered(&self, unclosed: Vec<Unclosed>) {
        let number = unclosed.len();
        for mut left in unclosed {
            let (Ok(opened), Ok(progress)) = (left.open::<Opened>(), left.progress::<Progress>()) else {
                tracing::error!("an open entry of the previous run cannot be read; it stays open");
                continue;
            };
            let mut charge = opened.charge;
            charge.recovered = true;
            if let Some(progress) = progress {
                charge.finished_at = progress.at;
                charge.generated_tokens = progress.generated_tokens;
                charge.reasoning_tokens = progress.reasoning_tokens.min(progress.generated_tokens);
                charge.ttft_us = progress.ttft_us;
                charge.decode_us = progress.decode_us;
                charge.replicas = progress.replicas;
                charge.cached_prompt_tokens = progress.cached_prompt_tokens.min(opened.whole_prompt_tokens);
                if progress.generated_tokens > 0 {
                    charge.prompt_tokens = opened.whole_prompt_tokens;
                }
            }
            if let Err(error) = self.write(&mut left.entry, opened.request, charge) {
                tracing::error!(request = %opened.request, error = &error as &dyn std::error::Error, "a recovered request could not be closed");
            }
        }
        if number > 0 {
            tracing::warn!(number, "requests of the previous run were closed from their last progress");
        }
    }

    fn write(&self, entry: &mut OpenEntry, request: RequestId, charge: ChargeData) -> Result<(), LogError> {
        let tenant = charge.tenant.to_string();
        tracing::debug!(
            %request,
            %tenant,
            model = charge.requested_model,
            reason = ?charge.finish_reason,
            prompt_tokens = charge.prompt_tokens,
            cached_prompt_tokens = charge.cached_prompt_tokens,
            generated_tokens = charge.generated_tokens,
            ttft_us = charge.ttft_us,
            "request ended"
        );
        self.metrics.ended(&charge);
        entry.close(USAGE_TOPIC, &tenant, |sequence| self.record(request, charge, sequence)).map(drop)
    }

    fn record(&self, request: RequestId, mut charge: ChargeData, sequence: u64) -> ChargeRecord {
        charge.sequence = sequence;
        ChargeRecord::new(request.to_string(), self.gateway.to_string(), self.clock.now(), charge)
    }
}

impl Received {
    /// `charge` with no tokens and [`FinishReason::Cancelled`]: what is recorded if nothing more happens.
    pub(crate) fn new(recorder: Arc<Recorder>, request: RequestId, charge: ChargeData) -> Self {
        Self { recorder, request, charge: Some(charge) }
    }

    /// What it was decided to get: `granted_max_tokens` if that is less than it asked for.
    pub(crate) fn decided(&mut self, version: VersionId, slo: SloOutcome, granted_max_tokens: Option<u32>) {
        if let Some(charge) = &mut self.charge {
            *charge = ChargeData { version, slo, granted_max_tokens, ..charge.clone() };
        }
    }

    /// The request was refused with an answer; refusals are counted elsewhere.
    pub(crate) fn refused(mut self) {
        self.charge = None;
    }

    /// Opens the request in the log; call before dispatch.
    pub(crate) fn open(mut self, whole_prompt_tokens: u64, arrived: Instant) -> Result<OpenRecord, LogError> {
        let charge = self.charge.take().expect("taken only here and by refused, which both consume self");
        let opened = Opened { request: self.request, charge, whole_prompt_tokens };
        let entry = self.recorder.log.begin(&opened)?;
        Ok(OpenRecord {
            recorder: self.recorder.clone(),
            request: self.request,
            entry,
            charge: opened.charge,
            whole_prompt_tokens,
            arrived,
        })
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let Some(mut charge) = self.charge.take() else { return };
        charge.finished_at = self.recorder.clock.now();
        self.recorder.metrics.ended(&charge);
        let tenant = charge.tenant.to_string();
        let record = |sequence| self.recorder.record(self.request, charge, sequence);
        if let Err(error) = self.recorder.log.append(USAGE_TOPIC, &tenant, record) {
            tracing::error!(request = %self.request, error = &error as &dyn std::error::Error, "a cancelled request could not be recorded");
        }
    }
}

impl OpenRecord {
    pub(crate) fn request(&self) -> RequestId {
        self.request
    }

    /// What is known of the charge so far.
    pub(crate) fn charge_mut(&mut self) -> &mut ChargeData {
        &mut self.charge
    }

    /// Notes how far the request has come.
    pub(crate) fn progress(&mut self, arrivals: &Arrivals) {
        let (ttft_us, decode_us) = self.token_times(arrivals);
        let at = self.recorder.clock.now();
        let progress = Progress {
            generated_tokens: arrivals.tokens,
            reasoning_tokens: arrivals.reasoning_tokens,
            cached_prompt_tokens: arrivals.cached_prompt_tokens,
            replicas: self.charge.replicas.clone(),
            at,
            ttft_us,
            decode_us,
        };
        if let Err(error) = self.entry.progress(&progress) {
            tracing::warn!(request = %self.request, error = &error as &dyn std::error::Error, "progress could not be noted");
        }
    }

    /// Writes the record. After a failure the entry stays in the log and is closed at the next start.
    pub(crate) fn close(mut self, ending: &Ending) -> Counts {
        let counts = self.counts(ending);
        let (ttft_us, decode_us) = self.token_times(&ending.arrivals);
        let mut charge = self.charge.clone();
        charge.finish_reason = ending.reason;
        charge.prompt_tokens = counts.prompt_tokens;
        charge.cached_prompt_tokens = counts.cached_prompt_tokens;
        charge.generated_tokens = counts.generated_tokens;
        charge.reasoning_tokens = counts.reasoning_tokens;
        charge.finished_at = self.recorder.clock.now();
        charge.ttft_us = ttft_us;
        charge.decode_us = decode_us;
        charge.inter_token = ending.arrivals.gaps.clone();
        if let Some(finished) = &ending.finished {
            charge.queue_us = finished.queue_us;
            charge.prefill_us = finished.prefill_us;
            charge.preemptions = finished.preemptions;
        }
        charge.slo.ttft_met = ttft_us.map(|us| us <= charge.slo.ttft_target_ms * 1000);
        charge.slo.itl_met = (charge.inter_token.count > 0)
            .then(|| charge.inter_token.sum_us <= charge.inter_token.count * charge.slo.itl_target_ms * 1000);
        if let Err(error) = self.recorder.write(&mut self.entry, self.request, charge) {
            tracing::error!(request = %self.request, error = &error as &dyn std::error::Error, "a request could not be closed in the record log; it is closed at the next start");
        }
        counts
    }

    /// DESIGN.md section 4, "Chargeable": the engine's counts where it gave them, else what arrived here.
    fn counts(&self, ending: &Ending) -> Counts {
        let whole = self.whole_prompt_tokens;
        match &ending.finished {
            _ if matches!(ending.reason, FinishReason::Rejected | FinishReason::ModelWarming) => {
                Counts::default()
            }
            Some(finished) => {
                if finished.generated_tokens != ending.arrivals.tokens {
                    tracing::warn!(
                        request = %self.request,
                        counted = finished.generated_tokens,
                        arrived = ending.arrivals.tokens,
                        "the engine counted other tokens than arrived; its count is charged"
                    );
                }
                let reached = finished.cached_prompt_tokens + finished.computed_prompt_tokens;
                Counts {
                    prompt_tokens: if finished.generated_tokens > 0 { whole } else { reached.min(whole) },
                    cached_prompt_tokens: finished.cached_prompt_tokens.min(whole),
                    generated_tokens: finished.generated_tokens,
                    reasoning_tokens: ending.arrivals.reasoning_tokens.min(finished.generated_tokens),
                }
            }
            None => Counts {
                prompt_tokens: if ending.arrivals.tokens > 0 { whole } else { 0 },
                cached_prompt_tokens: ending.arrivals.cached_prompt_tokens.min(whole),
                generated_tokens: ending.arrivals.tokens,
                reasoning_tokens: ending.arrivals.reasoning_tokens,
            },
        }
    }

    fn token_times(&self, arrivals: &Arrivals) -> (Option<u64>, u64) {
        let micros = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        let ttft_us = arrivals.first_at.map(|first| micros(self.arrived, first));
        let decode_us = match (arrivals.first_at, arrivals.last_at) {
            (Some(first), Some(last)) => micros(first, last),
            _ => 0,
        };
        (ttft_us, decode_us)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
