//! Reading records back, in the order they were written, without the writer's lock: only what is on disk is read.

use std::sync::Arc;

use crate::error::LogError;
use crate::frame::{Frame, Frames, Item, MAX_FRAME_BYTES};
use crate::log::Shared;
use crate::segment::{HEADER_BYTES, SegmentFile};

/// Bytes read at once: several largest frames, so that a whole one always fits.
const CHUNK_BYTES: usize = 8 * MAX_FRAME_BYTES;

/// One record as the ledger will see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The sender's gapless sequence number.
    pub sequence: u64,
    /// Topic it belongs to.
    pub topic: String,
    /// Partition key.
    pub key: String,
    /// CloudEvents JSON.
    pub payload: Vec<u8>,
}

/// A place in the log.
#[derive(Debug)]
pub struct Cursor {
    shared: Arc<Shared>,
    segment: Option<SegmentFile>,
    offset: u64,
    /// Records up to this sequence are skipped.
    after: u64,
}

impl Cursor {
    pub(crate) fn new(shared: Arc<Shared>, after: u64) -> Self {
        Self { shared, segment: None, offset: HEADER_BYTES, after }
    }

    /// Starts over, after `sequence`; with whatever the log still has of it.
    pub fn rewind(&mut self, sequence: u64) {
        self.segment = None;
        self.after = sequence;
    }

    /// The next records, at most `max_records` and, beyond the first, `max_bytes` of payload; empty at the end of
    /// what is on disk. Blocks on disk reads, mostly from the page cache.
    pub fn read(&mut self, max_records: usize, max_bytes: usize) -> Result<Vec<LogRecord>, LogError> {
        let mut batch = Batch { records: Vec::new(), bytes: 0, max_records, max_bytes, closed: false };
        while !batch.full() {
            let durable = *self.shared.durable.borrow();
            let Some(segment) = self.segment_at(durable.segment)? else { break };
            let limit_bytes = match segment.id == durable.segment {
                true => usize::try_from(durable.offset.saturating_sub(self.offset)).unwrap_or(CHUNK_BYTES),
                false => CHUNK_BYTES,
            };
            let chunk = segment.read_at(self.offset, limit_bytes.min(CHUNK_BYTES))?;
            let consumed = self.take_frames(&segment, &chunk, &mut batch);
            self.offset += consumed as u64;
            if consumed == 0 && !batch.full() {
                if segment.id >= durable.segment {
                    break;
                }
                // A sealed segment is read to its end.
                self.after_segment(segment.id)?;
            }
        }
        Ok(batch.records)
    }

    /// Takes whole frames until the batch is full; returns how many bytes are done with.
    fn take_frames(&mut self, segment: &SegmentFile, chunk: &[u8], batch: &mut Batch) -> usize {
        let mut consumed = 0;
        for item in Frames::new(chunk) {
            match item {
                Item::Frame(Frame::Record { sequence, topic, key, payload, .. }, range) => {
                    if sequence > self.after {
                        let (topic, key, payload) = (topic.to_owned(), key.to_owned(), payload.to_vec());
                        if !batch.push(LogRecord { sequence, topic, key, payload }) {
                            return consumed;
                        }
                    }
                    consumed = range.end;
                }
                Item::Frame(Frame::Open { .. } | Frame::Progress { .. }, range) => consumed = range.end,
                // At the chunk's end it may be a frame cut by the chunk: the next read begins with it.
                Item::Damage(range) if range.end == chunk.len() && range.start > 0 => return consumed,
                Item::Damage(range) => {
                    tracing::warn!(
                        segment = %segment.path.display(),
                        offset = self.offset + range.start as u64,
                        bytes = range.len(),
                        "damaged bytes in the record log are skipped"
                    );
                    consumed = match range.end == CHUNK_BYTES {
                        // A frame may begin in the damaged bytes and end after the chunk.
                        true => range.end - MAX_FRAME_BYTES,
                        false => range.end,
                    };
                }
            }
        }
        consumed
    }

    /// The segment to read, opening the next begun one where there is none at hand.
    fn segment_at(&mut self, durable_segment: u64) -> Result<Option<SegmentFile>, LogError> {
        if self.segment.is_none() {
            self.after_segment(0)?;
        }
        Ok(self.segment.clone().filter(|segment| segment.id <= durable_segment))
    }

    /// Moves to the first segment after `id` that has records after `self.after`.
    fn after_segment(&mut self, id: u64) -> Result<(), LogError> {
        let (dir, next) = self.shared.writer.lock().next_segment_with_records(id, self.after);
        self.segment = Some(SegmentFile::open(&dir, next)?);
        self.offset = HEADER_BYTES;
        Ok(())
    }
}

/// What one read gathers.
struct Batch {
    records: Vec<LogRecord>,
    bytes: usize,
    max_records: usize,
    max_bytes: usize,
    /// The next record did not fit.
    closed: bool,
}

impl Batch {
    fn full(&self) -> bool {
        self.closed || self.records.len() >= self.max_records || self.bytes >= self.max_bytes
    }

    fn push(&mut self, record: LogRecord) -> bool {
        let bytes = self.bytes + record.payload.len();
        if self.full() || (!self.records.is_empty() && bytes > self.max_bytes) {
            self.closed = true;
            return false;
        }
        self.bytes = bytes;
        self.records.push(record);
        true
    }
}
