//! The writing side, behind one lock: where the next frame goes, what is open, and how much room is free.
//!
//! Room: every byte that an open entry may still write is backed by disk that is allocated already, so a close never
//! meets a full disk or a full log. The policy when there is no room is one: new entries are refused, and everything
//! that was begun is finished.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Durable, LogOptions, LogStats};
use crate::error::LogError;
use crate::frame::{FrameBuffer, MAX_FRAME_BYTES, NO_ENTRY};
use crate::segment::{Counters, HEADER_BYTES, SegmentFile};

const CLOSE_ROOM_BYTES: u64 = MAX_FRAME_BYTES as u64;
/// A full file system is asked again this often, however many requests come meanwhile.
const DISK_RETRY: Duration = Duration::from_millis(250);

/// The lock's content.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) dir: PathBuf,
    pub(super) options: LogOptions,
    pub(super) active: SegmentFile,
    pub(super) offset: u64,
    /// Allocated, not yet begun, oldest first.
    pub(super) spares: VecDeque<SegmentFile>,
    /// Every begun segment, the active one last.
    pub(super) segments: BTreeMap<u64, SegmentInfo>,
    pub(super) entries: HashMap<u64, EntryInfo>,
    pub(super) held_bytes: u64,
    pub(super) counters: Counters,
    pub(super) next_segment: u64,
    /// Left behind by rotation since the last fsync, with their final lengths.
    pub(super) sealed: Vec<(SegmentFile, u64)>,
    /// Something for the keeper to do.
    pub(super) dirty: bool,
    pub(super) stopping: bool,
    /// The watermark passed this log's own numbering and must be persisted, or a restart would miss the numbers.
    pub(super) watermark_jumped: bool,
    pub(super) sync_failed: bool,
    /// New entries are refused for want of room.
    pub(super) refusing: bool,
    /// Entries refused since the start.
    pub(super) refused: u64,
    /// When the file system last had no room for a segment; none once it had.
    pub(super) disk_full_at: Option<Instant>,
    pub(super) buffer: FrameBuffer,
}

/// What must be known of a segment to delete it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SegmentInfo {
    pub(super) bytes: u64,
    /// The next sequence when it was begun: this one and later ones are in it or in later segments.
    pub(super) first_sequence: u64,
    /// Highest sequence of a record in it; 0 where there is none.
    pub(super) max_sequence: u64,
    /// Open entries whose open frame is in it.
    pub(super) pins: usize,
    /// When the next one was begun; none while it is written to. A previous run's count as ended at this one's start.
    pub(super) sealed_at: Option<Instant>,
}

impl SegmentInfo {
    /// Of a segment that has only its header.
    pub(super) fn begun(counters: Counters) -> Self {
        Self { bytes: HEADER_BYTES, first_sequence: counters.next_sequence, ..Self::default() }
    }
}

/// Where an open entry's frames are.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryInfo {
    pub(super) open: Place,
    pub(super) progress: Option<Place>,
    pub(super) progress_room_bytes: u64,
}

/// A frame's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl Writer {
    /// Begins an entry, or refuses it while nothing has happened yet.
    pub(super) fn open_entry(&mut self, open: &impl Serialize) -> Result<u64, LogError> {
        if self.sync_failed {
            self.refused += 1;
            return Err(LogError::SyncFailed);
        }
        let entry = self.counters.next_entry;
        self.buffer.open(entry, open)?;
        let held_bytes = CLOSE_ROOM_BYTES + self.options.progress_room_bytes;
        let room = self.make_room(held_bytes + self.buffer.bytes().len() as u64);
        self.refused += u64::from(room.is_err());
        self.note_room(&room);
        room?;
        let place = self.write_buffer()?;
        self.counters.next_entry += 1;
        self.hold(entry, place, None);
        Ok(entry)
    }

    /// Takes note of an open entry and holds its room.
    pub(super) fn hold(&mut self, entry: u64, open: Place, progress: Option<Place>) {
        let progress_room_bytes = self.options.progress_room_bytes;
        self.entries.insert(entry, EntryInfo { open, progress, progress_room_bytes });
        self.held_bytes += CLOSE_ROOM_BYTES + progress_room_bytes;
        self.segments.entry(open.segment).or_default().pins += 1;
    }

    pub(super) fn progress(&mut self, entry: u64, progress: &impl Serialize) -> Result<(), LogError> {
        self.buffer.progress(entry, progress)?;
        let bytes = self.buffer.bytes().len() as u64;
        let room = self.entries.get(&entry).ok_or(LogError::Closed)?.progress_room_bytes;
        let from_room = if room >= bytes { bytes } else { 0 };
        if from_room == 0 {
            self.make_room(bytes)?;
        }
        let place = self.write_buffer()?;
        self.held_bytes -= from_room;
        if let Some(info) = self.entries.get_mut(&entry) {
            info.progress_room_bytes -= from_room;
            info.progress = Some(place);
        }
        Ok(())
    }

    /// Writes a record, the close of `entry` unless that is [`NO_ENTRY`].
    pub(super) fn record<T: Serialize>(
        &mut self,
        entry: u64,
        topic: &str,
        key: &str,
        payload: impl FnOnce(u64) -> T,
    ) -> Result<u64, LogError> {
        let sequence = self.counters.next_sequence;
        self.buffer.record(entry, sequence, topic, key, &payload(sequence))?;
        if entry == NO_ENTRY {
            self.make_room(self.buffer.bytes().len() as u64)?;
        }
        let place = self.write_buffer()?;
        self.counters.next_sequence += 1;
        self.note_record(place.segment, sequence);
        if let Some(info) = self.entries.remove(&entry) {
            self.held_bytes -= CLOSE_ROOM_BYTES + info.progress_room_bytes;
            self.unpin(info.open.segment);
        }
        Ok(sequence)
    }

    pub(super) fn note_record(&mut self, segment: u64, sequence: u64) {
        let info = self.segments.entry(segment).or_default();
        info.max_sequence = info.max_sequence.max(sequence);
    }

    pub(super) fn unpin(&mut self, segment: u64) {
        if let Some(info) = self.segments.get_mut(&segment) {
            info.pins = info.pins.saturating_sub(1);
        }
    }

    /// The ledger is at `watermark`. One beyond what this log ever wrote means that the log lost its past; its next
    /// records must not repeat numbers that the ledger has seen.
    pub(super) fn pass_watermark(&mut self, watermark: u64) {
        if watermark >= self.counters.next_sequence {
            tracing::error!(
                sender = self.options.sender_id,
                watermark,
                next_sequence = self.counters.next_sequence,
                "the ledger has records that this log does not know; numbering goes on after them"
            );
            self.counters.next_sequence = watermark + 1;
            self.watermark_jumped = true;
        }
        self.dirty = true;
    }

    pub(super) fn dirty(&self) -> bool {
        self.dirty
    }

    /// Sequences before this one were deleted with their segments.
    pub(super) fn oldest_sequence(&self) -> u64 {
        self.segments.first_key_value().map_or(1, |(_, info)| info.first_sequence)
    }

    /// The sequence before which everything lies further back than `bytes` from the end of the log.
    pub(super) fn sequence_within(&self, bytes: u64) -> u64 {
        let mut total = 0;
        let mut first = self.counters.next_sequence;
        for info in self.segments.values().rev() {
            total += info.bytes;
            if total > bytes {
                break;
            }
            first = first.min(info.first_sequence);
        }
        first
    }

    /// Where the next frame goes.
    pub(super) fn position(&self) -> Durable {
        Durable { segment: self.active.id, offset: self.offset, sequence: self.counters.next_sequence - 1 }
    }

    /// The first segment after `id` that is active or has a record after `sequence`.
    pub(crate) fn next_segment_with_records(&self, id: u64, sequence: u64) -> (PathBuf, u64) {
        let next = self
            .segments
            .range(id + 1..self.active.id)
            .find(|(_, info)| info.max_sequence > sequence)
            .map_or(self.active.id, |(&next, _)| next);
        (self.dir.clone(), next)
    }

    pub(super) fn stats(&self, watermark: u64, lag: Duration) -> LogStats {
        LogStats {
            used_bytes: self.used_bytes(),
            held_bytes: self.held_bytes,
            max_bytes: self.options.max_bytes,
            open_entries: self.entries.len(),
            last_sequence: self.counters.next_sequence - 1,
            watermark,
            lag,
            refusing: self.refusing || self.sync_failed,
            refused: self.refused,
        }
    }

    /// Room for any entry, as large as entries get.
    pub(super) fn entry_room_bytes(&self) -> u64 {
        MAX_FRAME_BYTES as u64 + CLOSE_ROOM_BYTES + self.options.progress_room_bytes
    }

    /// Whoever asked for a new entry's room got, or did not get it. Said once at each change: a full disk must not be
    /// filled by the complaints about it.
    pub(super) fn note_room(&mut self, room: &Result<(), LogError>) {
        let was_refusing = std::mem::replace(&mut self.refusing, room.is_err());
        match room {
            Err(error) if !was_refusing => tracing::error!(
                sender = self.options.sender_id,
                error = error as &dyn std::error::Error,
                open_entries = self.entries.len(),
                "no room in the record log: new requests are refused, running ones can be finished"
            ),
            Ok(()) if was_refusing => tracing::info!(
                sender = self.options.sender_id,
                refused = self.refused,
                "the record log has room again: new requests are taken"
            ),
            Ok(()) | Err(_) => {}
        }
    }

    /// Allocates until `bytes` are free beside what open entries may claim, or says that the log is full.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), LogError> {
        while self.allocated_bytes() < self.held_bytes + bytes {
            if self.used_bytes() + self.options.segment_bytes > self.options.max_bytes {
                return Err(LogError::Full {
                    used_bytes: self.used_bytes(),
                    held_bytes: self.held_bytes,
                    max_bytes: self.options.max_bytes,
                });
            }
            self.allocate_spare()?;
        }
        Ok(())
    }

    /// Allocated bytes not written yet. Each segment may end in a gap shorter than a frame, which does not count.
    fn allocated_bytes(&self) -> u64 {
        let active = self.options.segment_bytes.saturating_sub(self.offset + CLOSE_ROOM_BYTES);
        let spare = self.options.segment_bytes - HEADER_BYTES - CLOSE_ROOM_BYTES;
        active + spare * self.spares.len() as u64
    }

    fn allocate_spare(&mut self) -> Result<(), LogError> {
        if self.disk_full_at.is_some_and(|at| at.elapsed() < DISK_RETRY) {
            return Err(LogError::DiskFull { path: self.dir.clone() });
        }
        match SegmentFile::allocate(&self.dir, self.next_segment, self.options.segment_bytes) {
            Ok(spare) => {
                self.disk_full_at = None;
                self.next_segment += 1;
                self.spares.push_back(spare);
                Ok(())
            }
            Err(error) => {
                if matches!(error, LogError::DiskFull { .. })
                    && self.disk_full_at.replace(Instant::now()).is_none()
                {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the disk is full");
                }
                Err(error)
            }
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let sealed: u64 = self.segments.range(..self.active.id).map(|(_, info)| info.bytes).sum();
        sealed + self.options.segment_bytes * (1 + self.spares.len() as u64)
    }

    /// Appends the buffered frame. A failed write leaves the position where it was, to be written over.
    pub(super) fn write_buffer(&mut self) -> Result<Place, LogError> {
        let bytes = self.buffer.bytes().len();
        if self.offset + bytes as u64 > self.options.segment_bytes {
            self.rotate()?;
        }
        self.active.write_at(self.buffer.bytes(), self.offset)?;
        let place = Place { segment: self.active.id, offset: self.offset, bytes };
        self.offset += bytes as u64;
        self.segments.entry(self.active.id).or_default().bytes = self.offset;
        self.dirty = true;
        Ok(place)
    }

    fn rotate(&mut self) -> Result<(), LogError> {
        if self.spares.is_empty() {
            // Held room always has its spare; this is a record larger than what was free in the active segment.
            self.allocate_spare()?;
        }
        let Some(next) = self.spares.front().cloned() else { return Err(LogError::SyncFailed) };
        next.begin(self.counters)?;
        self.spares.pop_front();
        let sealed = std::mem::replace(&mut self.active, next);
        self.segments.entry(sealed.id).or_default().sealed_at = Some(Instant::now());
        self.sealed.push((sealed, self.offset));
        self.offset = HEADER_BYTES;
        self.segments.insert(self.active.id, SegmentInfo::begun(self.counters));
        Ok(())
    }
}
