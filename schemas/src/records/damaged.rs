//! What stands for a record that its sender no longer has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Takes the place of a record in its sender's sequence. No CloudEvent: nothing of the event is known but its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamagedRecord {
    /// Gateway or worker id.
    pub sender: String,
    /// The place that the record had.
    pub sequence: u64,
    /// What became of it, for people.
    pub reason: String,
}

impl DamagedRecord {
    /// Stands for `sequence` of `sender`.
    pub fn new(sender: &str, sequence: u64) -> Self {
        let reason = "damaged or lost on the sender's disk".to_owned();
        Self { sender: sender.to_owned(), sequence, reason }
    }
}
