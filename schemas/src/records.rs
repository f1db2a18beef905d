//! What the data plane reports: one charge record a request (gateways), one execution record an attempt (workers),
//! counted rejections. CloudEvents 1.0 in JSON; never a price, never a prompt, never a key.
//!
//! A `v1` shape only ever gains optional fields; samples of every shape that was ever sent are kept under
//! `schemas/samples/` and must parse for ever.

mod charge;
mod control;
mod damaged;
mod execution;
mod rejection;

pub use charge::{ChargeData, GapStats, SloOutcome, Tier};
pub use control::ControlEventData;
pub use damaged::DamagedRecord;
pub use execution::{Billing, ExecutionData, ExecutionOutcome};
pub use rejection::{RejectionData, RejectionReason};

use std::time::Duration;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// While tokens come, gateways and workers note how far a request has come at least this often. A crash loses what came
/// after the last note, so this is also how far the two sides' counts of a `recovered` request may be apart.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// When gateways and workers set out to note it: the other half of [`PROGRESS_INTERVAL`] is for a note that is late on a
/// busy machine, and for the time until the other side notices that a process has died.
pub const PROGRESS_NOTE_INTERVAL: Duration = Duration::from_millis(500);
const _: () = assert!(PROGRESS_NOTE_INTERVAL.as_millis() * 2 == PROGRESS_INTERVAL.as_millis());

/// A worker that its gateway's session has been cut off from computes on until it notices, at the latest after this: so
/// far may it be ahead of what arrived and was charged as `replica_lost`.
pub const SESSION_LOSS_INTERVAL: Duration = Duration::from_secs(15);

/// Topic of [`ChargeRecord`]s, keyed by tenant id.
pub const USAGE_TOPIC: &str = "weir.usage.v1";
/// Topic of [`ExecutionRecord`]s, keyed by tenant id.
pub const EXECUTIONS_TOPIC: &str = "weir.executions.v1";
/// Topic of [`RejectionRecord`]s, keyed by tenant id where known.
pub const REJECTIONS_TOPIC: &str = "weir.rejections.v1";
/// Topic of [`DamagedRecord`]s, each in place of a record that its sender's disk damaged or lost: it keeps the sequence gapless, so that the ledger's
/// watermark can pass, and is listed there as a dead letter.
pub const DAMAGED_TOPIC: &str = "weir.damaged.v1";

/// Topic of [`ControlEventRecord`]s: one partition, in the order of the event log.
pub const CONTROL_TOPIC: &str = "weir.control.v1";

/// A CloudEvents 1.0 envelope in its JSON format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CloudEvent<T> {
    /// Always `1.0`.
    pub specversion: String,
    /// Unique within `source`; of a charge the request id, so that a resend is recognisable.
    pub id: String,
    /// The sender: gateway or worker id.
    pub source: String,
    /// Event type, with its version.
    #[serde(rename = "type")]
    pub event_type: String,
    /// When it was written, on the sender's clock.
    pub time: DateTime<Utc>,
    /// Always `application/json`.
    pub datacontenttype: String,
    /// The event's own data.
    pub data: T,
}

/// What can stand in an envelope's `data`.
pub trait RecordData {
    /// CloudEvents `type`.
    const EVENT_TYPE: &'static str;
    /// Topic it is sent to.
    const TOPIC: &'static str;
}

impl<T: RecordData> CloudEvent<T> {
    /// Wraps `data` for sending.
    pub fn new(id: impl Into<String>, source: impl Into<String>, time: DateTime<Utc>, data: T) -> Self {
        Self {
            specversion: "1.0".into(),
            id: id.into(),
            source: source.into(),
            event_type: T::EVENT_TYPE.into(),
            time,
            datacontenttype: "application/json".into(),
            data,
        }
    }
}

/// One finished request, written by its gateway; the ledger charges from it.
pub type ChargeRecord = CloudEvent<ChargeData>;
/// One attempt at a request, written by the worker that ran it; the ledger reconciles charges against it.
pub type ExecutionRecord = CloudEvent<ExecutionData>;
/// Refused requests of one minute, tenant, model and reason.
pub type RejectionRecord = CloudEvent<RejectionData>;

/// One event of the control plane's log.
pub type ControlEventRecord = CloudEvent<ControlEventData>;

impl RecordData for ChargeData {
    const EVENT_TYPE: &'static str = "weir.request.finished.v1";
    const TOPIC: &'static str = USAGE_TOPIC;
}

impl RecordData for ExecutionData {
    const EVENT_TYPE: &'static str = "weir.execution.finished.v1";
    const TOPIC: &'static str = EXECUTIONS_TOPIC;
}

impl RecordData for RejectionData {
    const EVENT_TYPE: &'static str = "weir.requests.rejected.v1";
    const TOPIC: &'static str = REJECTIONS_TOPIC;
}

impl RecordData for ControlEventData {
    const EVENT_TYPE: &'static str = "weir.control.event.v1";
    const TOPIC: &'static str = CONTROL_TOPIC;
}

/// Why a request ended, as the ledger and the API's `finish_reason` see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End of sequence, or a stop string.
    Stop,
    /// The output limit.
    Length,
    /// The model called a tool.
    ToolCalls,
    /// The client went away.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
    /// The replica died and no other could go on.
    ReplicaLost,
    /// A fault of ours.
    Error,
    /// Refused after it was opened (no replica took it).
    Rejected,
    /// No replica had the model ready.
    ModelWarming,
}

impl FinishReason {
    /// Whether the tokens of a request that ended so are charged (DESIGN.md section 4, "Chargeable"); an error is
    /// charged once a token was delivered.
    pub fn is_chargeable(self, generated_tokens: u64) -> bool {
        match self {
            Self::Stop
            | Self::Length
            | Self::ToolCalls
            | Self::Cancelled
            | Self::Deadline
            | Self::ReplicaLost => true,
            Self::Error => generated_tokens > 0,
            Self::Rejected | Self::ModelWarming => false,
        }
    }
}
