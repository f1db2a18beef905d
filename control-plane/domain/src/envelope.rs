//! One stored fact and where it stands.

use chrono::{DateTime, Utc};

/// An event as the log holds it. `(stream, version)` is unique; `position` is gapless over all streams.
#[derive(Debug, Clone, PartialEq)]
pub struct EventEnvelope<E> {
    /// Place in the whole log, from 1, in commit order.
    pub position: u64,
    /// The aggregate's id.
    pub stream: String,
    /// Place in the stream, from 1.
    pub version: u64,
    /// Who caused it: a key id, `node` or `system`.
    pub actor: String,
    /// When it was appended.
    pub recorded_at: DateTime<Utc>,
    /// What happened.
    pub event: E,
}
