//! What is deleted, and when.

use super::*;

#[test]
fn segments_go_when_the_watermark_has_passed_them_and_numbering_outlives_them() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let last = write_many(&log, 60, 10_000);
    log.sync().unwrap();
    let before = segment_files(dir.path());
    assert!(before >= 4, "{before}");
    log.set_watermark(last - 30);
    log.sync().unwrap();
    let between = segment_files(dir.path());
    assert!(between < before && between > 2, "{between}");
    assert_eq!(sequences(&all(&log, last - 30)), (last - 29..=last).collect::<Vec<u64>>());
    log.set_watermark(last);
    log.sync().unwrap();
    assert!(segment_files(dir.path()) <= 2, "the active segment and perhaps a spare");
    drop(log);
    let (log, unclosed) = open(dir.path());
    assert!(unclosed.is_empty());
    assert_eq!(log.stats().watermark, last);
    assert_eq!(write(&log, 1), last + 1);
    assert_eq!(sequences(&all(&log, 0)), [last + 1]);
}

#[test]
fn a_long_request_does_not_keep_every_segment_since_it_began() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut long = log.begin(&"long").unwrap();
    long.progress(&1).unwrap();
    for round in 0..6 {
        let last = write_many(&log, 20, 10_000);
        log.set_watermark(last);
        log.sync().unwrap();
        assert!(segment_files(dir.path()) <= 5, "round {round}: {}", segment_files(dir.path()));
        long.progress(&(round + 2)).unwrap();
    }
    drop((long, log));
    let (_log, unclosed) = open(dir.path());
    let found: Vec<(String, Option<u32>)> =
        unclosed.iter().map(|entry| (entry.open().unwrap(), entry.progress().unwrap())).collect();
    assert_eq!(found, [("long".to_owned(), Some(7))]);
}

#[test]
fn a_closed_entry_whose_close_may_be_deleted_is_never_handed_back() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    // Opened in the first segment, closed in a later one, so the close may only go together with the open.
    let mut early = log.begin(&"early").unwrap();
    let mut pin = log.begin(&"pin").unwrap();
    for _ in 0..20 {
        write(&log, 10_000);
    }
    early.close(TOPIC, "k", |_| "early").unwrap();
    let last = write_many(&log, 20, 10_000);
    log.set_watermark(last);
    log.sync().unwrap();
    pin.progress(&1).unwrap();
    drop((pin, early, log));
    let (_log, unclosed) = open(dir.path());
    let found: Vec<String> = unclosed.iter().map(|entry| entry.open().unwrap()).collect();
    assert_eq!(found, ["pin"]);
}

#[test]
fn a_log_that_lost_its_past_does_not_repeat_numbers() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    log.set_watermark(41);
    assert_eq!(write(&log, 1), 42);
    log.sync().unwrap();
    drop(log);
    let (log, _) = open(dir.path());
    assert_eq!(write(&log, 1), 43);
    assert_eq!(sequences(&all(&log, 0)), [42, 43], "nothing is reported as lost either");
    log.set_watermark(40);
    assert_eq!(log.stats().watermark, 41, "a watermark never goes back");
}

#[test]
fn a_cursor_follows_over_rotation_and_deletion() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut cursor = log.cursor();
    let mut read = Vec::new();
    for _ in 0..8 {
        for _ in 0..9 {
            write(&log, 10_000);
        }
        log.sync().unwrap();
        loop {
            let batch = cursor.read(4, 1 << 20).unwrap();
            if batch.is_empty() {
                break;
            }
            read.extend(sequences(&batch));
        }
        log.set_watermark(*read.last().unwrap());
    }
    assert_eq!(read, (1..=72).collect::<Vec<u64>>());
}

#[test]
fn the_recent_past_stays_readable_while_there_is_room() {
    let dir = TempDir::new().unwrap();
    let options = LogOptions { keep_recent: std::time::Duration::from_secs(3600), ..options() };
    let (log, _) = RecordLog::open(dir.path(), options.clone()).unwrap();
    let last = write_many(&log, 60, 10_000);
    log.set_watermark(last);
    log.sync().unwrap();
    assert!(segment_files(dir.path()) >= 4, "all of it is recent");
    let read = |log: &RecordLog, bytes| {
        let mut cursor = log.recent(bytes);
        let mut records = Vec::new();
        loop {
            let batch = cursor.read(100, 1 << 20).unwrap();
            if batch.is_empty() {
                return sequences(&records);
            }
            records.extend(batch);
        }
    };
    assert_eq!(read(&log, u64::MAX), (1..=last).collect::<Vec<u64>>());
    let newest = read(&log, 400 << 10);
    assert!(newest.len() > 10 && newest.len() < 60, "{newest:?}");
    assert_eq!(newest, (newest[0]..=last).collect::<Vec<u64>>());
    drop(log);
    // After a restart it is still there.
    let (log, _) = RecordLog::open(dir.path(), options).unwrap();
    log.sync().unwrap();
    assert_eq!(read(&log, u64::MAX), (1..=last).collect::<Vec<u64>>());
    // Room comes first: nothing is refused for the sake of the past.
    for _ in 0..20 {
        let last = write_many(&log, 20, 10_000);
        log.set_watermark(last);
        log.sync().unwrap();
    }
    assert!(!log.stats().refusing);
}
