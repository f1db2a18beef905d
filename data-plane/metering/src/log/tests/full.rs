//! The bound, and the room that is held for what was begun.

use super::*;

#[test]
fn a_full_log_refuses_new_entries_and_closes_every_open_one() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut open_entries = Vec::new();
    let full = loop {
        match log.begin(&"open") {
            Ok(entry) => open_entries.push(entry),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, LogError::Full { .. }), "{full}");
    assert!(open_entries.len() > 30, "{}", open_entries.len());
    let stats = log.stats();
    assert!(stats.used_bytes <= stats.max_bytes);
    // Plain appends may take no held room either.
    let refused = (0..100).find_map(|_| log.append(TOPIC, "k", |_| "x".repeat(30_000)).err());
    assert!(matches!(refused, Some(LogError::Full { .. })));
    // Every one may still write all its progress and the largest close.
    let largest = "x".repeat(crate::MAX_PAYLOAD_BYTES - 2);
    for entry in &mut open_entries {
        for _ in 0..20 {
            entry.progress(&1).unwrap();
        }
        entry.close(TOPIC, "k", |_| &largest).unwrap();
    }
    let stats = log.stats();
    assert!(stats.used_bytes <= stats.max_bytes, "{stats:?}");
    assert_eq!((stats.held_bytes, stats.open_entries), (0, 0));
    let refused = (0..100)
        .find_map(|_| log.begin(&"more").and_then(|mut entry| entry.close(TOPIC, "k", |_| &largest)).err());
    assert!(matches!(refused, Some(LogError::Full { .. })));
    // The ledger takes it all: there is room again.
    log.sync().unwrap();
    log.set_watermark(log.stats().last_sequence);
    log.sync().unwrap();
    log.begin(&"more").unwrap().close(TOPIC, "k", |_| 1).unwrap();
}

#[test]
fn progress_beyond_its_room_takes_what_is_free_and_is_refused_where_nothing_is() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut first = log.begin(&"first").unwrap();
    let chatty = "p".repeat(200);
    let mut written = 0;
    let refused = loop {
        match first.progress(&chatty) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::Full { .. }));
    assert!(written > 1_000, "{written}");
    first.close(TOPIC, "k", |_| "closed all the same").unwrap();
}

#[test]
fn what_cannot_be_written_leaves_no_trace() {
    let dir = TempDir::new().unwrap();
    let (log, _) = open(dir.path());
    let mut entry = log.begin(&"open").unwrap();
    let oversized = "x".repeat(crate::MAX_PAYLOAD_BYTES);
    assert!(matches!(entry.close(TOPIC, "k", |_| &oversized), Err(LogError::TooLong { .. })));
    assert!(matches!(log.begin(&oversized), Err(LogError::TooLong { .. })));
    assert_eq!(entry.close(TOPIC, "k", |_| "shorter").unwrap(), 1, "no number was used up");
    assert_eq!(sequences(&all(&log, 0)), [1]);
}

#[test]
fn contradicting_options_are_refused() {
    let dir = TempDir::new().unwrap();
    let check = |change: fn(&mut LogOptions)| {
        let mut options = options();
        change(&mut options);
        assert!(matches!(RecordLog::open(dir.path(), options), Err(LogError::Options { .. })));
    };
    check(|options| options.sender_id.clear());
    check(|options| options.segment_bytes = 1 << 10);
    check(|options| options.max_bytes = options.segment_bytes);
    check(|options| options.progress_room_bytes = 1 << 30);
    check(|options| options.sync_interval = std::time::Duration::ZERO);
}
