//! Random logs and random damage: whatever whole frame stands before the damage survives, and nothing is invented.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use weir_schemas::records::DAMAGED_TOPIC;

use super::*;
use crate::frame::{Frame, FrameBuffer, Frames, Item, decode};
use crate::segment::HEADER_BYTES;

#[derive(Debug, Clone)]
enum Written {
    Open(u64, String),
    Progress(u64, u32),
    Record(u64, u64, String),
}

fn frame() -> impl Strategy<Value = Written> {
    let text = || prop_oneof![".{0,40}", "[a-z]{0,300}"];
    prop_oneof![
        (0..9u64, text()).prop_map(|(entry, text)| Written::Open(entry, text)),
        (0..9u64, any::<u32>()).prop_map(|(entry, tokens)| Written::Progress(entry, tokens)),
        (0..9u64, 1..99u64, text())
            .prop_map(|(entry, sequence, text)| Written::Record(entry, sequence, text)),
    ]
}

/// The frames one after the other, and where each ends.
fn encode(frames: &[Written]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends, mut buffer) = (Vec::new(), Vec::new(), FrameBuffer::default());
    for frame in frames {
        match frame {
            Written::Open(entry, text) => buffer.open(*entry, text),
            Written::Progress(entry, tokens) => buffer.progress(*entry, tokens),
            Written::Record(entry, sequence, text) => {
                buffer.record(*entry, *sequence, TOPIC, text.get(..5).unwrap_or("k"), text)
            }
        }
        .unwrap();
        bytes.extend_from_slice(buffer.bytes());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// Bytes of the whole frames that a reader finds, in its order. Its items must be disjoint and ascending.
fn whole_frames(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut found, mut at) = (Vec::new(), 0);
    for item in Frames::new(bytes) {
        let (Item::Frame(_, range) | Item::Damage(range)) = &item;
        assert!(range.start == at && range.end > at && range.end <= bytes.len(), "{range:?} after {at}");
        at = range.end;
        if let Item::Frame(_, range) = item {
            found.push(&bytes[range]);
        }
    }
    found
}

/// What a disk or a crash may do to a file from one place on.
#[derive(Debug, Clone)]
enum Damage {
    Cut,
    Flip(u8),
    Zero(usize),
    Overwrite(Vec<u8>),
    /// A block that was written in another place.
    Repeat(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        2 => Just(Damage::Cut),
        2 => (1..=255u8).prop_map(Damage::Flip),
        1 => (1..600usize).prop_map(Damage::Zero),
        1 => prop::collection::vec(any::<u8>(), 1..100).prop_map(Damage::Overwrite),
        1 => (1..600usize).prop_map(Damage::Repeat),
    ]
}

fn apply(damage: &Damage, bytes: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    match damage {
        Damage::Cut => damaged.truncate(at),
        Damage::Flip(mask) => damaged[at] ^= mask,
        Damage::Zero(length) => {
            let end = (at + length).min(bytes.len());
            damaged[at..end].fill(0);
        }
        Damage::Overwrite(noise) => {
            for (byte, noise) in damaged[at..].iter_mut().zip(noise) {
                *byte = *noise;
            }
        }
        Damage::Repeat(length) => {
            let from = at.saturating_sub(*length);
            let copy = bytes[from..at].to_vec();
            for (byte, copied) in damaged[at..].iter_mut().zip(copy) {
                *byte = copied;
            }
        }
    }
    damaged
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_or_a_flip_at_every_byte_of_mixed_frames(frames in prop::collection::vec(frame(), 1..8), mask in 1..=255u8) {
        let (bytes, ends) = encode(&frames);
        let written: Vec<&[u8]> = [0].iter().chain(&ends).zip(&ends).map(|(&from, &to)| &bytes[from..to]).collect();
        prop_assert_eq!(whole_frames(&bytes), written.clone());
        for at in 0..bytes.len() {
            let before = ends.iter().filter(|&&end| end <= at).count();
            prop_assert_eq!(whole_frames(&bytes[..at]), written[..before].to_vec(), "cut at {}", at);
            let mut flipped = bytes.clone();
            flipped[at] ^= mask;
            let mut rest = written.clone();
            rest.remove(before);
            prop_assert_eq!(whole_frames(&flipped), rest, "byte {} ^ {:#x}", at, mask);
        }
    }

    #[test]
    fn any_damage_leaves_what_was_before_it_and_invents_nothing(
        frames in prop::collection::vec(frame(), 1..12), place in 0.0..1.0f64, damage in damage(),
    ) {
        let (bytes, ends) = encode(&frames);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place within the bytes")]
        let at = ((bytes.len() as f64 * place) as usize).min(bytes.len() - 1);
        let written: Vec<&[u8]> = [0].iter().chain(&ends).zip(&ends).map(|(&from, &to)| &bytes[from..to]).collect();
        let damaged = apply(&damage, &bytes, at);
        let found = whole_frames(&damaged);
        let before = ends.iter().filter(|&&end| end <= at).count();
        prop_assert_eq!(&found[..before], &written[..before]);
        prop_assert!(found.iter().all(|frame| written.contains(frame)));
    }

    #[test]
    fn arbitrary_bytes_are_never_a_frame_and_never_a_panic(
        mut noise in prop::collection::vec(any::<u8>(), 0..4096), magics in prop::collection::vec((any::<usize>(), any::<u32>()), 0..8),
    ) {
        // With beginnings of frames in it, whose lengths lie.
        for (place, length) in magics {
            let header = [&[0xF7, b'w', b'f', 0xF8][..], &length.to_le_bytes()].concat();
            let at = place % (noise.len() + 1);
            noise.splice(at..at, header);
        }
        prop_assert_eq!(whole_frames(&noise), Vec::<&[u8]>::new());
        prop_assert!(decode(&noise).is_none());
    }

    /// A whole log, damaged anywhere in any of its files, and opened again.
    #[test]
    fn a_damaged_log_keeps_numbering_gapless_and_charges_only_what_was_written(
        steps in prop::collection::vec((0..4u8, any::<usize>(), 0..9_000usize), 4..40), file in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), damage in damage(),
    ) {
        let dir = TempDir::new().unwrap();
        let (log, _) = open(dir.path());
        let mut entries = Vec::new();
        let mut written = BTreeMap::new();
        for (kind, which, bytes) in steps {
            let payload = "x".repeat(bytes);
            match kind {
                0 => entries.push(log.begin(&bytes).unwrap()),
                1 if !entries.is_empty() => { let at = which % entries.len(); entries[at].progress(&bytes).unwrap() }
                2 if !entries.is_empty() => {
                    let at = which % entries.len();
                    let sequence = entries.swap_remove(at).close(TOPIC, "k", |_| &payload).unwrap();
                    written.insert(sequence, format!("\"{payload}\"").into_bytes());
                }
                _ => {
                    let sequence = log.append(TOPIC, "k", |_| &payload).unwrap();
                    written.insert(sequence, format!("\"{payload}\"").into_bytes());
                }
            }
        }
        let open_before = entries.len();
        drop((entries, log));
        let files = crate::segment::list(dir.path()).unwrap();
        let path = crate::segment::segment_path(dir.path(), *file.get(&files));
        let bytes = fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
        let at = place.index(used);
        fs::write(&path, apply(&damage, &bytes, at)).unwrap();

        let (log, unclosed) = open(dir.path());
        let records = all(&log, 0);
        for record in records.iter().filter(|record| record.topic != DAMAGED_TOPIC) {
            prop_assert_eq!(Some(&record.payload), written.get(&record.sequence), "record {}", record.sequence);
        }
        let mut numbers = sequences(&records);
        numbers.sort_unstable();
        numbers.dedup();
        // Gapless to the last that is known to have been used; what was torn off at the end was never there. With the
        // very first header gone the relay reports what was before the first record that is left.
        let (first, last) = (numbers.first().copied().unwrap_or(1), numbers.last().copied().unwrap_or(0));
        prop_assert!(first == 1 || at < usize::try_from(HEADER_BYTES).unwrap());
        prop_assert_eq!(&numbers, &(first..=last).collect::<Vec<u64>>());
        prop_assert!(unclosed.len() <= open_before + written.len());
        prop_assert_eq!(write(&log, 1), last + 1);
        // Everything in front of the damage is untouched.
        let intact = &bytes[usize::try_from(HEADER_BYTES).unwrap().min(at)..at];
        for item in Frames::new(intact) {
            if let Item::Frame(Frame::Record { sequence, payload, .. }, _) = item {
                let kept = records.iter().find(|record| record.sequence == sequence && record.topic == TOPIC);
                prop_assert_eq!(kept.map(|record| record.payload.as_slice()), Some(payload));
            }
        }
    }
}
