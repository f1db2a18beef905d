//! One frame of a segment: magic, length, CRC32, body. Every reader of segments goes through [`Frames`], which finds
//! the next whole frame after damage, so that one flipped byte costs one frame and not the rest of the segment.
//!
//! ```text
//! u32 magic | u32 body length | u32 CRC32(length, body) | body
//! body: u8 kind | u64 entry | open, progress: payload
//!                           | record: u64 sequence | u16 topic length | topic | u16 key length | key | payload
//! ```
//! All integers little-endian. The magic's bytes are not UTF-8, so no JSON payload can contain it.

use std::ops::Range;

use serde::Serialize;

use crate::error::LogError;

/// Largest payload of a frame: a charge record whose inter-token sketch uses every bucket is under 16 KiB, the rest
/// is for labels that the gateway bounds.
pub const MAX_PAYLOAD_BYTES: usize = 32 * 1024;
/// Topics are ours, keys are ids.
const MAX_NAME_BYTES: usize = 255;
const MAGIC: [u8; 4] = [0xF7, b'w', b'f', 0xF8];
const HEADER_BYTES: usize = 12;
const MAX_BODY_BYTES: usize = 1 + 8 + 8 + 2 * (2 + MAX_NAME_BYTES) + MAX_PAYLOAD_BYTES;
/// Largest frame; the room that an open entry holds for its close.
pub(crate) const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_BODY_BYTES;
/// Entry number of a record that had no open.
pub(crate) const NO_ENTRY: u64 = 0;

const KIND_OPEN: u8 = 1;
const KIND_PROGRESS: u8 = 2;
const KIND_RECORD: u8 = 3;

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Open { entry: u64, payload: &'a [u8] },
    Progress { entry: u64, payload: &'a [u8] },
    Record { entry: u64, sequence: u64, topic: &'a str, key: &'a str, payload: &'a [u8] },
}

/// Encodes frames one at a time into a buffer that is kept for the next.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer(Vec<u8>);

impl FrameBuffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn open(&mut self, entry: u64, payload: &impl Serialize) -> Result<(), LogError> {
        self.start(KIND_OPEN, entry);
        self.json(payload)
    }

    pub(crate) fn progress(&mut self, entry: u64, payload: &impl Serialize) -> Result<(), LogError> {
        self.start(KIND_PROGRESS, entry);
        self.json(payload)
    }

    /// A frame again, byte for byte as it was stored.
    pub(crate) fn copy_from(&mut self, frame: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(frame);
    }

    pub(crate) fn record(
        &mut self,
        entry: u64,
        sequence: u64,
        topic: &str,
        key: &str,
        payload: &impl Serialize,
    ) -> Result<(), LogError> {
        self.start(KIND_RECORD, entry);
        self.0.extend_from_slice(&sequence.to_le_bytes());
        for (what, name) in [("topic", topic), ("key", key)] {
            if name.len() > MAX_NAME_BYTES {
                return Err(LogError::TooLong { what, bytes: name.len(), limit: MAX_NAME_BYTES });
            }
            let length = u16::try_from(name.len()).expect("at most MAX_NAME_BYTES");
            self.0.extend_from_slice(&length.to_le_bytes());
            self.0.extend_from_slice(name.as_bytes());
        }
        self.json(payload)
    }

    fn start(&mut self, kind: u8, entry: u64) {
        self.0.clear();
        self.0.extend_from_slice(&[0; HEADER_BYTES]);
        self.0.push(kind);
        self.0.extend_from_slice(&entry.to_le_bytes());
    }

    fn json(&mut self, payload: &impl Serialize) -> Result<(), LogError> {
        let start = self.0.len();
        serde_json::to_writer(&mut self.0, payload).map_err(LogError::Encode)?;
        let bytes = self.0.len() - start;
        if bytes > MAX_PAYLOAD_BYTES {
            // One huge payload must not keep its memory for ever.
            self.0 = Vec::new();
            return Err(LogError::TooLong { what: "payload", bytes, limit: MAX_PAYLOAD_BYTES });
        }
        self.finish();
        Ok(())
    }

    fn finish(&mut self) {
        let length =
            u32::try_from(self.0.len() - HEADER_BYTES).expect("at most MAX_BODY_BYTES").to_le_bytes();
        let checksum = checksum(length, &self.0[HEADER_BYTES..]);
        self.0[0..4].copy_from_slice(&MAGIC);
        self.0[4..8].copy_from_slice(&length);
        self.0[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}

/// What stands at a place in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// A whole frame and the bytes it takes.
    Frame(Frame<'a>, Range<usize>),
    /// Bytes between whole frames, or after the last, that are no frame: a torn write or damage.
    Damage(Range<usize>),
}

/// Walks over the frames in `bytes`; an unwritten (zero) tail ends it silently.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let start = self.offset;
        if let Some((frame, length)) = decode(&self.bytes[start..]) {
            self.offset = start + length;
            return Some(Item::Frame(frame, start..self.offset));
        }
        let rest = &self.bytes[start..];
        if rest.iter().all(|&byte| byte == 0) {
            self.offset = self.bytes.len();
            return None;
        }
        let next =
            (1..rest.len()).find(|&at| rest[at..].starts_with(&MAGIC) && decode(&rest[at..]).is_some());
        self.offset = next.map_or(self.bytes.len(), |at| start + at);
        Some(Item::Damage(start..self.offset))
    }
}

/// The frame at the start of `bytes` and its length; `None` unless it is whole and undamaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Frame<'_>, usize)> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (stored, rest) = rest.split_first_chunk::<4>()?;
    let body_bytes = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if *magic != MAGIC || body_bytes > MAX_BODY_BYTES {
        return None;
    }
    let body = rest.get(..body_bytes)?;
    if checksum(*length, body) != u32::from_le_bytes(*stored) {
        return None;
    }
    Some((decode_body(body)?, HEADER_BYTES + body_bytes))
}

fn decode_body(body: &[u8]) -> Option<Frame<'_>> {
    let (&kind, rest) = body.split_first()?;
    let (entry, rest) = take_u64(rest)?;
    match kind {
        KIND_OPEN => Some(Frame::Open { entry, payload: rest }),
        KIND_PROGRESS => Some(Frame::Progress { entry, payload: rest }),
        KIND_RECORD => {
            let (sequence, rest) = take_u64(rest)?;
            let (topic, rest) = take_name(rest)?;
            let (key, payload) = take_name(rest)?;
            Some(Frame::Record { entry, sequence, topic, key, payload })
        }
        _ => None,
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (value, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*value), rest))
}

fn take_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_frames() -> (Vec<u8>, Vec<usize>) {
        let mut buffer = FrameBuffer::default();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        buffer.open(7, &"open").unwrap();
        bytes.extend_from_slice(buffer.bytes());
        ends.push(bytes.len());
        buffer.progress(7, &12).unwrap();
        bytes.extend_from_slice(buffer.bytes());
        ends.push(bytes.len());
        buffer.record(7, 1, "weir.usage.v1", "ten_1", &"close").unwrap();
        bytes.extend_from_slice(buffer.bytes());
        ends.push(bytes.len());
        (bytes, ends)
    }

    fn whole(bytes: &[u8]) -> usize {
        Frames::new(bytes).filter(|item| matches!(item, Item::Frame(..))).count()
    }

    #[test]
    fn frames_come_back_as_written() {
        let (mut bytes, _) = three_frames();
        bytes.extend_from_slice(&[0; 64]);
        let frames: Vec<_> = Frames::new(&bytes)
            .map(|item| match item {
                Item::Frame(frame, _) => frame,
                Item::Damage(range) => panic!("damage at {range:?}"),
            })
            .collect();
        let expected = [
            Frame::Open { entry: 7, payload: b"\"open\"" },
            Frame::Progress { entry: 7, payload: b"12" },
            Frame::Record {
                entry: 7,
                sequence: 1,
                topic: "weir.usage.v1",
                key: "ten_1",
                payload: b"\"close\"",
            },
        ];
        assert_eq!(frames, expected);
    }

    #[test]
    fn a_cut_at_any_byte_keeps_exactly_the_whole_frames_before_it() {
        let (bytes, ends) = three_frames();
        for cut in 0..=bytes.len() {
            let before = ends.iter().filter(|&&end| end <= cut).count();
            assert_eq!(whole(&bytes[..cut]), before, "cut at {cut}");
            // The same in a preallocated segment, where zeros follow.
            let mut padded = bytes[..cut].to_vec();
            padded.resize(bytes.len() + 32, 0);
            let kept = whole(&padded);
            // A frame whose cut-off bytes are zeros anyway is whole.
            assert!(kept == before || kept == before + 1 && padded[..ends[before]] == bytes[..ends[before]]);
        }
    }

    #[test]
    fn a_flipped_byte_costs_one_frame_and_is_reported() {
        let (bytes, _) = three_frames();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                assert_eq!(whole(&damaged), 2, "byte {at} ^ {flip:#x}");
                assert!(Frames::new(&damaged).any(|item| matches!(item, Item::Damage(_))));
            }
        }
    }

    #[test]
    fn a_payload_over_the_bound_is_refused() {
        let mut buffer = FrameBuffer::default();
        buffer.record(1, 1, "t", "k", &"x".repeat(MAX_PAYLOAD_BYTES - 2)).unwrap();
        assert!(buffer.bytes().len() <= MAX_FRAME_BYTES);
        let refused = buffer.record(1, 1, "t", "k", &"x".repeat(MAX_PAYLOAD_BYTES));
        assert!(matches!(refused, Err(LogError::TooLong { .. })));
        let refused = buffer.record(1, 1, "t", &"k".repeat(300), &"");
        assert!(matches!(refused, Err(LogError::TooLong { what: "key", .. })));
    }
}
