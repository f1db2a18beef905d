//! Refused requests, counted: one record per minute, tenant, model and reason, so that shedding cannot flatter
//! goodput and a flood cannot flood the log.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::TenantId;

/// Why requests were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RejectionReason {
    /// A limit of the tenant.
    RateLimit,
    /// The budget is spent.
    Budget,
    /// The platform is full.
    Capacity,
    /// No replica was ready.
    ModelWarming,
    /// The record log is full.
    RecordLogFull,
}

/// Number of requests refused in one minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectionData {
    /// Start of the minute, on the gateway's clock.
    pub minute: DateTime<Utc>,
    /// Whose requests.
    pub tenant: TenantId,
    /// The model as named by the clients.
    pub requested_model: String,
    /// Why.
    pub reason: RejectionReason,
    /// How many.
    pub count: u64,
    /// The gateway's gapless sequence number.
    pub sequence: u64,
}
