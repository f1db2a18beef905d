//! The log's dials.

use std::time::Duration;

use crate::error::LogError;
use crate::frame::MAX_FRAME_BYTES;

/// Bounds and intervals of a record log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Owner of the sequence numbers: the gateway's or worker's id.
    pub sender_id: String,
    /// Bound of the disk used. Default 1 GiB: about 800,000 charge records, or an hour at 200 requests/s.
    pub max_bytes: u64,
    /// Length of a segment, the unit of allocation and deletion. Default 8 MiB.
    pub segment_bytes: u64,
    /// Time between group fsyncs: what a power cut can lose. Default 50 ms.
    pub sync_interval: Duration,
    /// Room held for an entry's progress beside its close. Default 64 KiB: ten minutes of one 100-byte progress a
    /// second; longer requests' progress takes room that is free.
    pub progress_room_bytes: u64,
    /// Records younger than this are kept even if the ledger has them, while there is room, for who must know the
    /// recent past after a restart. Default none.
    pub keep_recent: Duration,
}

/// Two active or spare segments and some to hold what the ledger has not yet.
const MIN_SEGMENTS: u64 = 4;
/// A segment is read whole at recovery.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;

impl LogOptions {
    /// The defaults, for this sender.
    pub fn new(sender_id: impl Into<String>) -> Self {
        Self {
            sender_id: sender_id.into(),
            max_bytes: 1 << 30,
            segment_bytes: 8 << 20,
            sync_interval: Duration::from_millis(50),
            progress_room_bytes: 64 << 10,
            keep_recent: Duration::ZERO,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let refuse = |reason| Err(LogError::Options { reason });
        if self.sender_id.is_empty() || self.sender_id.len() > 128 {
            return refuse("a sender id has 1 to 128 bytes");
        }
        let min_segment_bytes = 4 * MAX_FRAME_BYTES as u64;
        if !(min_segment_bytes..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes) {
            return refuse("a segment holds four largest frames and at most 256 MiB");
        }
        if self.max_bytes < MIN_SEGMENTS * self.segment_bytes {
            return refuse("the bound must allow four segments");
        }
        if self.progress_room_bytes > self.segment_bytes {
            return refuse("the room for progress is at most a segment");
        }
        if self.sync_interval.is_zero() {
            return refuse("the sync interval is not zero");
        }
        Ok(())
    }
}
