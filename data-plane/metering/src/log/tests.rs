mod damage;
mod disk_full;
mod full;
mod fuzz;
mod property;
mod retention;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{LogOptions, RecordLog, Unclosed};
use crate::cursor::LogRecord;
use crate::error::LogError;

const TOPIC: &str = "weir.usage.v1";

/// Small segments, so that a few records rotate; the keeper's interval is long, so that tests decide when to sync.
fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 160 << 10,
        max_bytes: 2 << 20,
        progress_room_bytes: 1 << 10,
        sync_interval: std::time::Duration::from_secs(3600),
        ..LogOptions::new("gtw_1")
    }
}

fn open(dir: &Path) -> (Arc<RecordLog>, Vec<Unclosed>) {
    RecordLog::open(dir, options()).unwrap()
}

/// Everything on disk after `after`, in small batches.
fn all(log: &RecordLog, after: u64) -> Vec<LogRecord> {
    log.sync().unwrap();
    let mut cursor = log.cursor();
    cursor.rewind(after);
    let mut records = Vec::new();
    loop {
        let batch = cursor.read(7, 4 << 10).unwrap();
        if batch.is_empty() {
            return records;
        }
        assert!(batch.len() <= 7);
        records.extend(batch);
    }
}

fn sequences(records: &[LogRecord]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
}

/// A record of about `bytes`, closed at once.
fn write(log: &Arc<RecordLog>, bytes: usize) -> u64 {
    let mut entry = log.begin(&"open").unwrap();
    entry.close(TOPIC, "ten_1", |_| "x".repeat(bytes)).unwrap()
}

/// Several; returns the last one's sequence.
fn write_many(log: &Arc<RecordLog>, records: usize, bytes: usize) -> u64 {
    (0..records).fold(0, |_, _| write(log, bytes))
}

fn segment_files(dir: &Path) -> usize {
    crate::segment::list(dir).unwrap().len()
}

#[test]
fn a_close_is_the_record_and_carries_its_sequence() {
    let dir = TempDir::new().unwrap();
    let (log, unclosed) = open(dir.path());
    assert!(unclosed.is_empty());
    let mut entry = log.begin(&json!({"request": 1})).unwrap();
    entry.progress(&json!({"generated": 3})).unwrap();
    assert_eq!(log.stats().open_entries, 1);
    assert_eq!(entry.close(TOPIC, "ten_1", |sequence| json!({"sequence": sequence})).unwrap(), 1);
    assert!(matches!(entry.close(TOPIC, "ten_1", |_| 0), Err(LogError::Closed)));
    assert!(matches!(entry.progress(&0), Err(LogError::Closed)));
    assert_eq!(
        log.append("weir.rejections.v1", "ten_2", |sequence| json!({"sequence": sequence})).unwrap(),
        2
    );
    let records = all(&log, 0);
    assert_eq!(sequences(&records), [1, 2]);
    assert_eq!((records[0].topic.as_str(), records[0].key.as_str()), (TOPIC, "ten_1"));
    assert_eq!(records[0].payload, br#"{"sequence":1}"#);
    assert_eq!((log.stats().open_entries, log.stats().held_bytes), (0, 0));
}

#[test]
fn what_was_open_is_handed_back_with_its_last_progress_and_numbering_goes_on() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut closed = log.begin(&"closed").unwrap();
    let mut with_progress = log.begin(&"with progress").unwrap();
    let without = log.begin(&"without").unwrap();
    for tokens in 1..=5 {
        with_progress.progress(&tokens).unwrap();
    }
    closed.close(TOPIC, "k", |_| "closed").unwrap();
    drop((with_progress, without, closed, log));

    let (log, mut unclosed) = open(dir.path());
    let found: Vec<(String, Option<u32>)> =
        unclosed.iter().map(|entry| (entry.open().unwrap(), entry.progress().unwrap())).collect();
    assert_eq!(found, [("with progress".to_owned(), Some(5)), ("without".to_owned(), None)]);
    assert_eq!(unclosed[0].entry.close(TOPIC, "k", |_| "recovered").unwrap(), 2);
    drop((unclosed, log));
    let (log, unclosed) = open(dir.path());
    assert_eq!(unclosed.len(), 1);
    assert_eq!(sequences(&all(&log, 0)), [1, 2]);
}

#[test]
fn nothing_is_read_before_it_is_on_disk() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    write(&log, 10);
    let mut cursor = log.cursor();
    assert_eq!(cursor.read(10, 1 << 20).unwrap(), []);
    log.sync().unwrap();
    assert_eq!(cursor.read(10, 1 << 20).unwrap().len(), 1);
    assert_eq!(cursor.read(10, 1 << 20).unwrap(), []);
}

#[test]
fn the_keeper_syncs_without_being_asked_and_when_the_log_is_dropped() {
    let dir = TempDir::new().unwrap();
    let interval = std::time::Duration::from_millis(5);
    let (log, _) = RecordLog::open(dir.path(), LogOptions { sync_interval: interval, ..options() }).unwrap();
    write(&log, 10);
    let mut durable = log.shared.durable.subscribe();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { durable.wait_for(|durable| durable.sequence == 1).await.unwrap() });
}

#[test]
fn two_processes_or_two_senders_never_share_a_log() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    assert!(matches!(RecordLog::open(dir.path(), options()), Err(LogError::Locked { .. })));
    drop(log);
    let other = LogOptions { sender_id: "gtw_2".into(), ..options() };
    assert!(matches!(RecordLog::open(dir.path(), other), Err(LogError::OtherSender { .. })));
    open(dir.path());
}

#[test]
fn concurrent_writers_get_gapless_numbers_in_file_order() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for number in 0..200 {
                    let mut entry = log.begin(&(writer, number)).unwrap();
                    entry.progress(&number).unwrap();
                    entry.close(TOPIC, "k", |sequence| json!({"sequence": sequence})).unwrap();
                }
            });
        }
    });
    let records = all(&log, 0);
    assert_eq!(sequences(&records), (1..=800).collect::<Vec<u64>>());
    for record in records {
        assert_eq!(record.payload, format!("{{\"sequence\":{}}}", record.sequence).into_bytes());
    }
}

#[test]
fn a_batch_is_bounded_by_count_and_by_bytes_and_never_empty_before_the_end() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    for _ in 0..20 {
        write(&log, 1_000);
    }
    log.sync().unwrap();
    let mut cursor = log.cursor();
    let lengths: Vec<usize> = [(3, 1 << 20), (100, 2_500), (100, 1), (100, 1 << 20)]
        .map(|(records, bytes)| cursor.read(records, bytes).unwrap().len())
        .to_vec();
    assert_eq!(lengths, [3, 2, 1, 14]);
}
