//! Opening: reads every segment, finds what was open, what is damaged and where numbering goes on.
//!
//! The previous run's last segment is never written to again: a torn tail stays where it is and a new segment
//! follows. A sequence that the counters say was used but that no whole frame holds is filled with a record on
//! [`DAMAGED_TOPIC`](weir_schemas::records::DAMAGED_TOPIC), so that the ledger is told instead of waiting for it for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use weir_schemas::records::{DAMAGED_TOPIC, DamagedRecord};

use super::writer::{Place, SegmentInfo, Writer};
use super::{LogOptions, watermark_file};
use crate::error::LogError;
use crate::frame::{Frame, FrameBuffer, Frames, Item, NO_ENTRY};
use crate::segment::{self, Counters, HEADER_BYTES, SegmentFile, segment_path};
use crate::sender::sync_dir;

/// More missing sequences than this are not one damaged segment; the operator must look.
const MAX_MISSING: u64 = 1 << 20;

/// What opening gives.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) writer: Writer,
    pub(super) watermark: u64,
    pub(super) unclosed: Vec<FoundEntry>,
}

/// An entry whose close was not found.
#[derive(Debug)]
pub(super) struct FoundEntry {
    pub(super) entry: u64,
    pub(super) open: Vec<u8>,
    pub(super) progress: Option<Vec<u8>>,
}

pub(super) fn recover(dir: &Path, options: &LogOptions) -> Result<Recovered, LogError> {
    let watermark = watermark_file::read(dir)?;
    let mut scan = Scan { highest: watermark, watermark, ..Scan::default() };
    let ids = segment::list(dir)?;
    for &id in &ids {
        scan.segment(dir, id)?;
    }
    // First, because on a full disk the new segment may need their room.
    for id in std::mem::take(&mut scan.empty) {
        let path = segment_path(dir, id);
        fs::remove_file(&path).map_err(LogError::io("remove", &path))?;
    }
    let next_segment = ids.last().map_or(1, |last| last + 1);
    let counters =
        Counters { next_sequence: scan.highest + 1, next_entry: scan.next_entry.max(NO_ENTRY + 1) };
    let active = SegmentFile::allocate(dir, next_segment, options.segment_bytes)?;
    active.begin(counters)?;
    active.sync()?;
    scan.segments.insert(next_segment, SegmentInfo::begun(counters));
    let mut writer = Writer {
        dir: dir.to_owned(),
        options: options.clone(),
        active,
        offset: HEADER_BYTES,
        spares: VecDeque::new(),
        segments: scan.segments,
        entries: Default::default(),
        held_bytes: 0,
        counters,
        next_segment: next_segment + 1,
        sealed: Vec::new(),
        dirty: true,
        stopping: false,
        watermark_jumped: false,
        sync_failed: false,
        refusing: false,
        refused: 0,
        disk_full_at: None,
        buffer: FrameBuffer::default(),
    };
    let mut unclosed = Vec::new();
    for (entry, found) in scan.entries {
        writer.hold(entry, found.open_place, found.progress.as_ref().map(|(place, _)| *place));
        let progress = found.progress.map(|(_, payload)| payload);
        unclosed.push(FoundEntry { entry, open: found.open, progress });
    }
    if let Err(error) = writer.make_room(0) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "no room yet for what the last run left open"
        );
    }
    fill_missing(&mut writer, &scan.missing)?;
    sync_dir(dir)?;
    Ok(Recovered { writer, watermark, unclosed })
}

/// The allocated rest of the previous run's last segment.
fn give_back_tail(path: &Path, bytes: u64) -> Result<(), LogError> {
    let file = fs::OpenOptions::new().write(true).open(path).map_err(LogError::io("open", path))?;
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(LogError::io("truncate", path))
}

fn fill_missing(writer: &mut Writer, missing: &BTreeSet<u64>) -> Result<(), LogError> {
    for &sequence in missing {
        tracing::error!(
            sender = writer.options.sender_id,
            sequence,
            "a record was damaged on disk; the ledger is told"
        );
        let payload = DamagedRecord::new(&writer.options.sender_id, sequence);
        writer.buffer.record(NO_ENTRY, sequence, DAMAGED_TOPIC, "", &payload)?;
        let place = writer.write_buffer()?;
        writer.note_record(place.segment, sequence);
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Scan {
    watermark: u64,
    segments: BTreeMap<u64, SegmentInfo>,
    entries: BTreeMap<u64, ScannedEntry>,
    next_entry: u64,
    /// Highest sequence known to have been used.
    highest: u64,
    /// Sequences below `highest` that no frame had so far.
    missing: BTreeSet<u64>,
    /// Segments with nothing in them.
    empty: Vec<u64>,
    /// Something was read that says where the log begins; what is before it was deleted, not lost.
    started: bool,
}

#[derive(Debug)]
struct ScannedEntry {
    open_place: Place,
    open: Vec<u8>,
    progress: Option<(Place, Vec<u8>)>,
}

impl Scan {
    fn segment(&mut self, dir: &Path, id: u64) -> Result<(), LogError> {
        let path = segment_path(dir, id);
        let bytes = fs::read(&path).map_err(LogError::io("read", &path))?;
        let header_bytes = usize::try_from(HEADER_BYTES).expect("forty").min(bytes.len());
        let (header, frames) = bytes.split_at(header_bytes);
        let mut info = SegmentInfo::default();
        match segment::parse_header(id, header) {
            Ok(Some(counters)) => {
                self.counters(counters);
                info.first_sequence = counters.next_sequence;
            }
            Ok(None) if frames.iter().all(|&byte| byte == 0) => {
                self.empty.push(id);
                return Ok(());
            }
            Ok(None) | Err(()) => {
                tracing::warn!(segment = %path.display(), "damaged record log segment header; its frames are read");
            }
        }
        for item in Frames::new(frames) {
            let (Item::Frame(_, range) | Item::Damage(range)) = &item;
            info.bytes = HEADER_BYTES + range.end as u64;
            match item {
                Item::Frame(frame, range) => self.frame(&mut info, frame, place(id, &range)),
                Item::Damage(range) => tracing::warn!(
                    segment = %path.display(),
                    offset = place(id, &range).offset,
                    bytes = range.len(),
                    "damaged or torn bytes in the record log are skipped"
                ),
            }
        }
        if info.bytes == 0 {
            self.empty.push(id);
            return Ok(());
        }
        if info.bytes < bytes.len() as u64 {
            give_back_tail(&path, info.bytes)?;
        }
        info.sealed_at = Some(Instant::now());
        self.segments.insert(id, info);
        Ok(())
    }

    fn frame(&mut self, info: &mut SegmentInfo, frame: Frame<'_>, place: Place) {
        match frame {
            Frame::Open { entry, payload } => {
                self.next_entry = self.next_entry.max(entry + 1);
                let progress = self.entries.remove(&entry).and_then(|found| found.progress);
                self.entries
                    .insert(entry, ScannedEntry { open_place: place, open: payload.to_vec(), progress });
            }
            Frame::Progress { entry, payload } => {
                if let Some(found) = self.entries.get_mut(&entry) {
                    found.progress = Some((place, payload.to_vec()));
                }
            }
            Frame::Record { entry, sequence, .. } => {
                self.entries.remove(&entry);
                if info.first_sequence == 0 {
                    // Its header was damaged.
                    info.first_sequence = sequence;
                }
                info.max_sequence = info.max_sequence.max(sequence);
                self.expect_up_to(sequence.saturating_sub(1));
                self.highest = self.highest.max(sequence);
                self.missing.remove(&sequence);
            }
        }
    }

    fn counters(&mut self, counters: Counters) {
        self.next_entry = self.next_entry.max(counters.next_entry);
        self.expect_up_to(counters.next_sequence.saturating_sub(1));
    }

    /// Everything up to `sequence` was used; what no frame had is missing, unless it was deleted with older segments
    /// or the ledger has it.
    fn expect_up_to(&mut self, sequence: u64) {
        let started = std::mem::replace(&mut self.started, true);
        if sequence <= self.highest {
            return;
        }
        if started {
            let from = self.highest.max(self.watermark) + 1;
            let from = from.max((sequence + 1).saturating_sub(MAX_MISSING));
            self.missing.extend(from..=sequence);
        }
        self.highest = sequence;
    }
}

fn place(segment: u64, range: &Range<usize>) -> Place {
    Place { segment, offset: HEADER_BYTES + range.start as u64, bytes: range.len() }
}
