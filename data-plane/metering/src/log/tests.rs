use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LogOptions, RecordLog, Unclosed};
use crate::cursor::LogRecord;
use crate::error::LogError;
use crate::segment;

const TOPIC: &str = "weir.usage.v1";

fn options() -> LogOptions {
    LogOptions { segment_bytes: 160 << 10, max_bytes: 2 << 20, progress_room_bytes: 1 << 10, ..LogOptions::new("gtw_1") }
}

fn open(dir: &Path) -> (Arc<RecordLog>, Vec<Unclosed>) {
    RecordLog::open(dir, options()).unwrap()
}

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
        records.extend(batch);
    }
}

fn sequences(records: &[LogRecord]) -> Vec<u64> {
    records.iter().map(|record| record.sequence).collect()
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
    assert_eq!(log.append("weir.rejections.v1", "ten_2", |sequence| json!({"sequence": sequence})).unwrap(), 2);
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
