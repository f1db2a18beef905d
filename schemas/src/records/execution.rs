//! The execution record's data: the worker's independent count.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{InstanceId, RequestId, TenantId, VersionId, WorkerId};

/// How an attempt ended at the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionOutcome {
    /// End of sequence, or a stop string.
    Stop,
    /// The output limit.
    Length,
    /// Cancelled by the gateway, or its session ended.
    Cancelled,
    /// The engine failed.
    Error,
    /// Refused before it ran.
    Refused,
}

/// One attempt at a request. Times are microseconds on the worker's monotonic clock unless named `_at`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionData {
    /// The request, as its gateway named it.
    pub request: RequestId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Whose request.
    pub tenant: TenantId,
    /// What ran.
    pub version: VersionId,
    /// Where it ran.
    pub worker: WorkerId,
    /// Which run of that worker.
    pub instance: InstanceId,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Prompt tokens computed here; recomputation after a preemption is not counted twice.
    pub computed_tokens: u64,
    /// Every sampled token up to and including the one that ended the attempt.
    pub generated_tokens: u64,
    /// Sequences it held in the batch.
    pub seats: u32,
    /// When it arrived, on the worker's clock.
    pub started_at: DateTime<Utc>,
    /// When it ended, on the worker's clock.
    pub finished_at: DateTime<Utc>,
    /// Arrival to first scheduled step.
    pub queue_us: u64,
    /// First scheduled step to first token.
    pub prefill_us: u64,
    /// First token to last token.
    pub decode_us: u64,
    /// Device time attributed: each step's time shared by the tokens computed in it.
    pub device_us: u64,
    /// Times it was preempted.
    pub preemptions: u32,
    /// How it ended.
    pub outcome: ExecutionOutcome,
    /// The worker's gapless sequence number.
    pub sequence: u64,
    /// Closed after a crash from its last progress.
    #[serde(default)]
    pub recovered: bool,
}
