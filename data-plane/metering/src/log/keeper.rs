//! The log's housekeeping, on a thread of its own and off every request's path: group fsync, spare segments,
//! deletion of what the ledger has.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::writer::{Place, SegmentInfo, Writer};
use super::{Shared, watermark_file};
use crate::error::LogError;
use crate::frame;
use crate::segment::{SegmentFile, segment_path};
use crate::sender::{replace_file, sync_dir};

/// An open entry is moved out of its segment only when that is this far behind, so that entries of ordinary length
/// are never copied.
const CARRY_DISTANCE_SEGMENTS: u64 = 2;
/// Age marks kept; when there are more, younger records are counted as old as the last mark.
const MAX_AGE_MARKS: usize = 1024;
/// How often a log without room looks whether there is some.
const ROOM_RETRY: Duration = Duration::from_millis(500);
/// Longest time between two tries of a housekeeping that fails.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The thread, until it is stopped.
#[derive(Debug)]
pub(super) struct Keeper(Mutex<Option<JoinHandle<()>>>);

impl Keeper {
    pub(super) fn start(shared: Arc<Shared>, sync_interval: Duration) -> Result<Self, LogError> {
        let dir = shared.writer.lock().dir.clone();
        let thread = thread::Builder::new()
            .name("record-log".into())
            .spawn(move || run(&shared, sync_interval))
            .map_err(LogError::io("start the keeper's thread for", &dir))?;
        Ok(Self(Mutex::new(Some(thread))))
    }

    /// Syncs a last time and ends the thread.
    pub(super) fn stop(&self, shared: &Shared) {
        shared.writer.lock().stopping = true;
        shared.wake.notify_all();
        let thread = self.0.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the record log's keeper thread panicked");
        }
    }
}

fn run(shared: &Shared, sync_interval: Duration) {
    let mut failures = 0u32;
    loop {
        let stopping = {
            let mut writer = shared.writer.lock();
            while !writer.dirty && !writer.stopping {
                if writer.refusing {
                    // Whether there is room again: nobody else may ask.
                    shared.wake.wait_for(&mut writer, ROOM_RETRY);
                    break;
                }
                shared.wake.wait(&mut writer);
            }
            // Gather what comes within the interval into one fsync; after a failure wait longer each time.
            let pause = (sync_interval * (1 << failures.min(5))).min(MAX_PAUSE.max(sync_interval));
            let group_ends = Instant::now() + pause;
            while !writer.stopping && !shared.wake.wait_until(&mut writer, group_ends).timed_out() {}
            writer.stopping
        };
        match tend(shared) {
            Ok(()) => failures = 0,
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures.is_power_of_two() {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, failures, "record log housekeeping failed; it is tried again");
                }
            }
        }
        if stopping {
            return;
        }
    }
}

/// One round of housekeeping.
pub(super) fn tend(shared: &Shared) -> Result<(), LogError> {
    let _turn = shared.tending.lock();
    sync(shared)?;
    prepare_spare(shared);
    prune(shared)
}

/// Brings everything written so far to disk, then lets cursors see it.
fn sync(shared: &Shared) -> Result<(), LogError> {
    let (sealed, active, position) = {
        let mut writer = shared.writer.lock();
        writer.dirty = false;
        (std::mem::take(&mut writer.sealed), writer.active.clone(), writer.position())
    };
    if *shared.durable.borrow() == position && sealed.is_empty() {
        return Ok(());
    }
    let synced = sealed.iter().try_for_each(seal).and_then(|()| active.sync());
    if let Err(error) = synced {
        let mut writer = shared.writer.lock();
        writer.sync_failed = true;
        writer.dirty = true;
        writer.sealed.splice(0..0, sealed);
        return Err(error);
    }
    shared.durable.send_replace(position);
    shared.pending_since.lock().note(position.sequence, Instant::now());
    Ok(())
}

/// Gives back a finished segment's unused tail and syncs it.
fn seal((segment, bytes): &(SegmentFile, u64)) -> Result<(), LogError> {
    segment.file.set_len(*bytes).map_err(LogError::io("truncate", &segment.path))?;
    segment.sync()
}

/// Allocates ahead of need, so that requests rarely do. Being full is not an error here: whoever needs room hears it.
fn prepare_spare(shared: &Shared) {
    let mut writer = shared.writer.lock();
    if writer.refusing {
        let wanted = writer.entry_room_bytes();
        let room = writer.make_room(wanted);
        writer.note_room(&room);
    }
    let wanted = writer.options.segment_bytes / 2;
    if let Err(error @ LogError::Io { .. }) = writer.make_room(wanted) {
        tracing::warn!(error = &error as &dyn std::error::Error, "no spare record log segment");
    }
}

/// Deletes the oldest segments that hold nothing which the ledger lacks. Only a prefix is ever deleted, so that an
/// open frame never outlives its close.
fn prune(shared: &Shared) -> Result<(), LogError> {
    let watermark = *shared.watermark.borrow();
    let (mut doomed, chosen) = {
        let mut writer = shared.writer.lock();
        let mut doomed = Doomed {
            dir: writer.dir.clone(),
            segments: VecDeque::new(),
            carried: false,
            jumped: std::mem::take(&mut writer.watermark_jumped),
        };
        let chosen = writer.choose_doomed(watermark, &mut doomed);
        (doomed, chosen)
    };
    let deleted = doomed.delete(shared, watermark);
    // What could not be deleted is still here.
    let mut writer = shared.writer.lock();
    writer.watermark_jumped |= doomed.jumped;
    writer.segments.extend(doomed.segments);
    chosen.and(deleted)
}

/// Segments that are taken out of the log's list and not yet deleted, oldest first.
struct Doomed {
    dir: PathBuf,
    segments: VecDeque<(u64, SegmentInfo)>,
    /// Entries were copied out of them.
    carried: bool,
    /// The watermark must be persisted even if nothing is deleted.
    jumped: bool,
}

impl Doomed {
    fn delete(&mut self, shared: &Shared, watermark: u64) -> Result<(), LogError> {
        if self.segments.is_empty() && !self.jumped {
            return Ok(());
        }
        if self.carried {
            sync(shared)?;
        }
        // The remaining segments' headers say where numbering goes on, so a watermark that cannot be written (a full
        // disk) must not keep back the very deletion that makes room.
        let persisted = replace_file(&self.dir.join(watermark_file::FILE), &watermark_file::text(watermark));
        self.jumped &= persisted.is_err();
        while let Some(&(id, _)) = self.segments.front() {
            let path = segment_path(&self.dir, id);
            fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
            self.segments.pop_front();
        }
        sync_dir(&self.dir)?;
        persisted
    }
}

impl Writer {
    fn choose_doomed(&mut self, watermark: u64, doomed: &mut Doomed) -> Result<(), LogError> {
        while let Some((&id, &info)) = self.segments.first_key_value() {
            if id == self.active.id || info.max_sequence > watermark || self.is_recent(&info) {
                break;
            }
            if info.pins > 0 {
                if self.active.id - id < CARRY_DISTANCE_SEGMENTS || !self.carry_open_entries(id)? {
                    break;
                }
                doomed.carried = true;
            }
            // Its pins are gone with what was carried.
            self.segments.remove(&id);
            doomed.segments.push_back((id, SegmentInfo { pins: 0, ..info }));
        }
        Ok(())
    }

    /// Kept for who must know the recent past; never at the price of refusing requests, so within half the bound.
    fn is_recent(&self, info: &SegmentInfo) -> bool {
        let is_short = self.refusing || self.used_bytes() > self.options.max_bytes / 2;
        !is_short && info.sealed_at.is_some_and(|at| at.elapsed() < self.options.keep_recent)
    }

    /// Copies the frames of entries opened in `segment` to the head of the log; false where there is no room.
    fn carry_open_entries(&mut self, segment: u64) -> Result<bool, LogError> {
        let mut pinning: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, info)| info.open.segment == segment)
            .map(|(&entry, _)| entry)
            .collect();
        pinning.sort_unstable();
        for entry in pinning {
            let Some(info) = self.entries.get(&entry).copied() else { continue };
            let bytes = info.open.bytes + info.progress.map_or(0, |place| place.bytes);
            if self.make_room(bytes as u64).is_err() {
                return Ok(false);
            }
            let open = self.copy_frame(info.open)?;
            let progress = info.progress.map(|place| self.copy_frame(place)).transpose()?;
            self.unpin(segment);
            self.segments.entry(open.segment).or_default().pins += 1;
            if let Some(info) = self.entries.get_mut(&entry) {
                (info.open, info.progress) = (open, progress);
            }
        }
        Ok(true)
    }

    fn copy_frame(&mut self, place: Place) -> Result<Place, LogError> {
        let source = SegmentFile::open(&self.dir, place.segment)?;
        let frame = source.read_at(place.offset, place.bytes)?;
        if frame::decode(&frame).is_none() {
            let damaged = std::io::Error::from(std::io::ErrorKind::InvalidData);
            return Err(LogError::Io {
                action: "re-read a frame of",
                path: source.path.to_path_buf(),
                source: damaged,
            });
        }
        self.buffer.copy_from(&frame);
        self.write_buffer()
    }
}

/// Since when records wait for the ledger: one mark for each fsync.
#[derive(Debug)]
pub(crate) struct PendingSince(VecDeque<(u64, Instant)>);

impl PendingSince {
    pub(super) fn new(watermark: u64, last_sequence: u64, now: Instant) -> Self {
        let mut pending = Self(VecDeque::new());
        pending.note(last_sequence, now);
        pending.pass_watermark(watermark);
        pending
    }

    fn note(&mut self, last_sequence: u64, now: Instant) {
        let full = self.0.len() >= MAX_AGE_MARKS;
        match self.0.back_mut() {
            Some(back) if back.0 >= last_sequence => {}
            Some(back) if full => back.0 = last_sequence,
            Some(_) | None => self.0.push_back((last_sequence, now)),
        }
    }

    pub(super) fn pass_watermark(&mut self, watermark: u64) {
        while self.0.front().is_some_and(|&(sequence, _)| sequence <= watermark) {
            self.0.pop_front();
        }
    }

    pub(super) fn lag(&self, now: Instant) -> Duration {
        self.0.front().map_or(Duration::ZERO, |&(_, since)| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod pending_since_tests {
    use super::*;

    #[test]
    fn lag_is_the_age_of_the_oldest_record_the_ledger_lacks() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pending = PendingSince::new(3, 3, at(0));
        assert_eq!(pending.lag(at(9)), Duration::ZERO);
        pending.note(5, at(1));
        pending.note(5, at(2));
        pending.note(8, at(4));
        assert_eq!(pending.lag(at(9)), Duration::from_secs(8));
        pending.pass_watermark(5);
        assert_eq!(pending.lag(at(9)), Duration::from_secs(5));
        pending.pass_watermark(8);
        assert_eq!(pending.lag(at(9)), Duration::ZERO);
        for sequence in 9..5_000 {
            pending.note(sequence, at(10));
        }
        assert_eq!(pending.0.len(), MAX_AGE_MARKS);
        pending.pass_watermark(4_999);
        assert!(pending.0.is_empty());
    }
}
