//! The execution record's data: the worker's independent count.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Tier;
use crate::ids::{GatewayId, InstanceId, KeyId, RequestId, TenantId, VersionId, WorkerId};

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

/// What a charge says beyond what a worker counts, as the gateway told it with the request: if the gateway is gone
/// with its disk, the request is charged from its execution records, under these labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Billing {
    /// Which gateway asked, and writes the charge record unless it is lost.
    pub gateway: GatewayId,
    /// The key it was asked with.
    pub key: KeyId,
    /// The client's project label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The client's own `metadata.request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<String>,
    /// As in the charge record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key_hash: Option<String>,
    /// The model as the client named it.
    pub requested_model: String,
    /// Scheduling class.
    pub tier: Tier,
    /// When the gateway had read the request, on its clock; decides the price in force.
    pub received_at: DateTime<Utc>,
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
    /// Who pays for what; absent where the gateway did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing: Option<Billing>,
}
