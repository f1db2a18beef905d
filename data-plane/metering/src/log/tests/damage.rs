//! Crashes at any byte, and disks that flip bits.

use std::fs;

use weir_schemas::records::DAMAGED_TOPIC;

use super::*;

/// A log with three closes and one open entry, as files.
fn sample(dir: &Path) -> (PathBuf, Vec<u8>) {
    let (log, _) = open(dir);
    for number in 0..3 {
        let mut entry = log.begin(&json!({"request": number})).unwrap();
        entry.progress(&json!({"generated": number})).unwrap();
        entry.close(TOPIC, "ten_1", |sequence| json!({"sequence": sequence})).unwrap();
    }
    let mut unclosed = log.begin(&json!({"request": "open"})).unwrap();
    unclosed.progress(&json!({"generated": 1})).unwrap();
    drop((unclosed, log));
    let files = crate::segment::list(dir).unwrap();
    let path = crate::segment::segment_path(dir, files[0]);
    let bytes = fs::read(&path).unwrap();
    let written = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    (path, bytes[..written].to_vec())
}

/// The same directory with another content of the first segment and nothing else.
fn reopen(content: &[u8]) -> (TempDir, Arc<RecordLog>, Vec<Unclosed>) {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("sender"), "gtw_1").unwrap();
    fs::write(crate::segment::segment_path(dir.path(), 1), content).unwrap();
    let (log, unclosed) = open(dir.path());
    (dir, log, unclosed)
}

#[test]
fn a_crash_at_any_byte_loses_only_what_was_not_whole() {
    let dir = TempDir::new().unwrap();
    let (_, bytes) = sample(dir.path());
    let (mut most_records, mut most_open) = (0, 0);
    for cut in 0..=bytes.len() {
        let (_dir, log, unclosed) = reopen(&bytes[..cut]);
        let records = all(&log, 0);
        let held = records.len();
        assert!(held >= most_records, "cut at {cut}: {held} records after {most_records}");
        assert_eq!(sequences(&records), (1..=held as u64).collect::<Vec<u64>>(), "cut at {cut}");
        assert!(records.iter().all(|record| record.topic == TOPIC), "a torn tail is nothing that was lost");
        assert!(unclosed.len() <= 1, "cut at {cut}");
        assert_eq!(write(&log, 1), held as u64 + 1, "cut at {cut}");
        (most_records, most_open) = (held, most_open.max(unclosed.len()));
    }
    assert_eq!((most_records, most_open), (3, 1));
}

#[test]
fn a_flipped_byte_anywhere_costs_one_frame_and_a_lost_record_is_reported_to_the_ledger() {
    let dir = TempDir::new().unwrap();
    let (_, bytes) = sample(dir.path());
    let (whole_dir, whole, _) = reopen(&bytes);
    let expected = all(&whole, 0);
    drop((whole, whole_dir));
    let mut reported = 0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x5A;
        let (_dir, log, unclosed) = reopen(&damaged);
        let records = all(&log, 0);
        let lost: Vec<u64> =
            records.iter().filter(|r| r.topic == DAMAGED_TOPIC).map(|r| r.sequence).collect();
        let intact: Vec<&LogRecord> = records.iter().filter(|record| record.topic == TOPIC).collect();
        assert!(intact.iter().all(|record| expected.contains(record)), "byte {at}");
        assert!(intact.len() >= 2, "byte {at}: {records:?}");
        assert!(unclosed.len() <= 2, "byte {at}");
        let mut numbers = sequences(&records);
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<u64>>(), "byte {at}: gapless");
        reported += lost.len();
    }
    assert!(reported > 0);
}

#[test]
fn what_was_lost_is_reported_once() {
    let dir = TempDir::new().unwrap();
    let (_, mut bytes) = sample(dir.path());
    let second = bytes.windows(14).position(|window| window == br#"{"sequence":2}"#).unwrap();
    bytes[second] ^= 1;
    let (dir, log, unclosed) = reopen(&bytes);
    // The second entry's close is the lost record: it is handed back as well, and closing it charges it.
    assert_eq!(unclosed.len(), 2);
    assert_eq!(sequences(&all(&log, 0)), [1, 3, 2]);
    drop((unclosed, log));
    let (log, _) = open(dir.path());
    assert_eq!(sequences(&all(&log, 0)), [1, 3, 2]);
}

#[test]
fn a_spare_segment_that_was_never_begun_is_removed() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    write(&log, 1);
    drop(log);
    fs::write(crate::segment::segment_path(dir.path(), 77), [0; 4096]).unwrap();
    let (log, _) = open(dir.path());
    assert!(!crate::segment::segment_path(dir.path(), 77).exists());
    assert_eq!(write(&log, 1), 2);
}
