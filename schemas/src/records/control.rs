//! What happened in the control plane: its event log as others may read it, in its order. Never a secret, because the
//! log holds none: keys by their ids only, of signing keys the public part.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One event of the log. Delivered at least once, in order of first delivery: a reader passes over positions that it
/// has seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlEventData {
    /// Its place in the log: from 1, without gaps. The config revision that it made current.
    pub position: u64,
    /// The id of the resource that it happened to.
    pub stream: String,
    /// Its place in that resource's history: from 1, without gaps.
    pub version: u64,
    /// What happened: a versioned name, such as `tenant.created.v1`.
    pub event: String,
    /// Its own fields, whose shape the name decides for ever.
    pub fields: Map<String, Value>,
    /// Who caused it: a key's id, or the control plane itself.
    pub actor: String,
    /// When, on the control plane's clock.
    pub recorded_at: DateTime<Utc>,
}
