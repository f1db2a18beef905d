//! The worker's own count of each attempt: opened in the record log before the engine hears of it, closed when it
//! ends, and closed by the next run if this one dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_metering::{LogError, OpenEntry, RecordLog, Unclosed};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{InstanceId, RequestId, TenantId, VersionId, WorkerId};
use weir_schemas::records::{Billing, EXECUTIONS_TOPIC, ExecutionData, ExecutionOutcome, ExecutionRecord};

/// Which attempt at which request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttemptId {
    pub(crate) request: RequestId,
    pub(crate) attempt: u32,
    pub(crate) tenant: TenantId,
    pub(crate) version: VersionId,
}

/// What an attempt has used so far, or in the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Used {
    pub(crate) cached_tokens: u64,
    pub(crate) computed_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) preemptions: u32,
    pub(crate) queue_us: u64,
    pub(crate) prefill_us: u64,
    pub(crate) decode_us: u64,
    pub(crate) device_us: u64,
}

/// What stands in the log while an attempt runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Open {
    #[serde(flatten)]
    id: AttemptId,
    instance: InstanceId,
    prompt_tokens: u64,
    /// Choices, each a sequence with a seat of its own.
    #[serde(default = "one")]
    seats: u32,
    started_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    billing: Option<Billing>,
}

fn one() -> u32 {
    1
}

/// Progress as it stands in the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Progress {
    at: DateTime<Utc>,
    #[serde(flatten)]
    used: Used,
}

/// Writes execution records.
#[derive(Debug, Clone)]
pub(crate) struct ExecutionLog {
    log: Arc<RecordLog>,
    worker: WorkerId,
    instance: InstanceId,
    clock: Clock,
}

impl ExecutionLog {
    pub(crate) fn new(log: Arc<RecordLog>, worker: WorkerId, instance: InstanceId, clock: Clock) -> Self {
        Self { log, worker, instance, clock }
    }

    /// Writes `open`. Fails when the log is full: then the attempt must not run.
    pub(crate) fn begin(
        &self,
        id: AttemptId,
        prompt_tokens: u64,
        seats: u32,
        billing: Option<Billing>,
    ) -> Result<OpenExecution, LogError> {
        let open = Box::new(Open {
            id,
            instance: self.instance,
            prompt_tokens,
            seats,
            started_at: self.clock.now(),
            billing,
        });
        let entry = self.log.begin(&open)?;
        Ok(OpenExecution { entry, open, arrived: Instant::now(), log: self.clone() })
    }

    /// New attempts cannot be opened at the moment.
    pub(crate) fn is_refusing(&self) -> bool {
        self.log.stats().refusing
    }

    /// Closes what the previous run left open, with its last progress.
    pub(crate) fn recover(&self, unclosed: Vec<Unclosed>) {
        for mut unclosed in unclosed {
            let (open, progress) = match (unclosed.open::<Open>(), unclosed.progress::<Progress>()) {
                (Ok(open), Ok(progress)) => (open, progress),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::error!(%error, "an open execution of the previous run is unreadable; it stays open");
                    continue;
                }
            };
            let (finished_at, used) = progress.map_or((open.started_at, Used::default()), |p| (p.at, p.used));
            let request = open.id.request;
            let closed = unclosed.entry.close(EXECUTIONS_TOPIC, &open.id.tenant.to_string(), |sequence| {
                let mut data = self.data(&open, used, finished_at, ExecutionOutcome::Error, sequence);
                data.recovered = true;
                self.envelope(data)
            });
            match closed {
                Ok(_) => tracing::warn!(%request, "closed an execution that the previous run left open"),
                Err(error) => {
                    tracing::error!(%error, %request, "an execution of the previous run stays open")
                }
            }
        }
    }

    fn data(
        &self,
        open: &Open,
        used: Used,
        finished_at: DateTime<Utc>,
        outcome: ExecutionOutcome,
        sequence: u64,
    ) -> ExecutionData {
        ExecutionData {
            request: open.id.request,
            attempt: open.id.attempt,
            tenant: open.id.tenant,
            version: open.id.version,
            worker: self.worker,
            instance: open.instance,
            prompt_tokens: open.prompt_tokens,
            cached_tokens: used.cached_tokens,
            computed_tokens: used.computed_tokens,
            generated_tokens: used.generated_tokens,
            seats: open.seats,
            started_at: open.started_at,
            finished_at,
            queue_us: used.queue_us,
            prefill_us: used.prefill_us,
            decode_us: used.decode_us,
            device_us: used.device_us,
            preemptions: used.preemptions,
            outcome,
            sequence,
            recovered: false,
            billing: open.billing.clone(),
        }
    }

    /// The event's id names the attempt, so that a resend is recognisable.
    fn envelope(&self, data: ExecutionData) -> ExecutionRecord {
        let id = format!("{}/{}/{}", data.request, data.attempt, data.instance);
        ExecutionRecord::new(id, self.worker.to_string(), self.clock.now(), data)
    }
}

/// An attempt that is open in the log.
#[derive(Debug)]
pub(crate) struct OpenExecution {
    entry: OpenEntry,
    /// Large, and looked at only at its ends.
    open: Box<Open>,
    arrived: Instant,
    log: ExecutionLog,
}

impl OpenExecution {
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.open.prompt_tokens
    }

    /// What a crash from now on would be closed with.
    pub(crate) fn progress(&mut self, used: Used) {
        let progress = Progress { at: self.log.clock.now(), used };
        if let Err(error) = self.entry.progress(&progress) {
            tracing::error!(%error, request = %self.open.id.request, "progress was not recorded");
        }
    }

    /// Writes the record.
    pub(crate) fn close(self, used: Used, outcome: ExecutionOutcome) {
        let Self { mut entry, open, log, arrived: _ } = self;
        let finished_at = log.clock.now();
        let closed = entry.close(EXECUTIONS_TOPIC, &open.id.tenant.to_string(), |sequence| {
            log.envelope(log.data(&open, used, finished_at, outcome, sequence))
        });
        if let Err(error) = closed {
            tracing::error!(%error, request = %open.id.request, "the execution record was not closed; the next start closes it");
        }
    }
}

/// Whole microseconds; half a million years fit.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
