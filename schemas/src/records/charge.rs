//! The charge record's data.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FinishReason;
use crate::config_snapshot::Revision;
use crate::ids::{KeyId, TenantId, VersionId, WorkerId};
use crate::sketch::Sketch;

/// Scheduling class that the request ran in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Latency matters.
    Interactive,
    /// Throughput matters.
    Batch,
}

/// Gaps between tokens as the gateway saw them, microseconds on a monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GapStats {
    /// Number of gaps.
    pub count: u64,
    /// Sum of the gaps, microseconds.
    pub sum_us: u64,
    /// Largest gap, microseconds.
    pub max_us: u64,
    /// Distribution of the gaps.
    pub sketch: Sketch,
}

impl GapStats {
    /// Counts one gap.
    pub fn record(&mut self, gap_us: u64) {
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(gap_us);
        self.max_us = self.max_us.max(gap_us);
        self.sketch.record(gap_us);
    }

    /// Counts all of another's gaps.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.max_us = self.max_us.max(other.max_us);
        self.sketch.merge(&other.sketch);
    }
}

/// Latency targets in force and whether this request met them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SloOutcome {
    /// Target of the time to first token, milliseconds.
    pub ttft_target_ms: u64,
    /// Target of the gap between tokens, milliseconds.
    pub itl_target_ms: u64,
    /// Met; absent where no token came.
    pub ttft_met: Option<bool>,
    /// The mean gap met it; absent where fewer than two tokens came.
    pub itl_met: Option<bool>,
}

/// One finished request. Times are microseconds on the gateway's monotonic clock unless named `_at`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChargeData {
    /// Who pays.
    pub tenant: TenantId,
    /// The key it was asked with.
    pub key: KeyId,
    /// The client's project label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The client's own `metadata.request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<String>,
    /// `sha256:` over the Idempotency-Key and what came with it; the ledger charges one (tenant, hash) once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key_hash: Option<String>,
    /// The model as the client named it.
    pub requested_model: String,
    /// The pinned version that served it.
    pub version: VersionId,
    /// Scheduling class.
    pub tier: Tier,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// Number of choices asked for.
    pub n: u32,
    /// The output cap that was granted, if it was reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_max_tokens: Option<u32>,
    /// Prompt tokens charged: the whole prompt; before the first token, as far as it was computed or cached.
    pub prompt_tokens: u64,
    /// Those of them taken from the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Every sampled token up to and including the one that ended the request.
    pub generated_tokens: u64,
    /// Those of them inside reasoning blocks.
    pub reasoning_tokens: u64,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// When the gateway had read the request, on its clock; decides the price in force.
    pub received_at: DateTime<Utc>,
    /// When it ended, on the gateway's clock.
    pub finished_at: DateTime<Utc>,
    /// Arrival to first scheduled step.
    pub queue_us: u64,
    /// First scheduled step to first token.
    pub prefill_us: u64,
    /// Arrival to first token; absent where none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_us: Option<u64>,
    /// First token to last token.
    pub decode_us: u64,
    /// Gaps between tokens.
    pub inter_token: GapStats,
    /// Targets and whether met.
    pub slo: SloOutcome,
    /// Workers that served it, in order.
    pub replicas: Vec<WorkerId>,
    /// Times its sequences were preempted.
    pub preemptions: u32,
    /// The config that decided it.
    pub config_revision: Revision,
    /// The gateway's gapless sequence number.
    pub sequence: u64,
    /// Closed after a crash from its last progress.
    #[serde(default)]
    pub recovered: bool,
}
