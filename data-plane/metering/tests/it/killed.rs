//! `kill -9` between any two instructions: what was acknowledged is in the log afterwards.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use weir_metering::{LogOptions, RecordLog};

const DIR: &str = "WEIR_TEST_LOG_DIR";

fn options() -> LogOptions {
    // No fsync within the test: surviving the process must not depend on one.
    LogOptions { sync_interval: std::time::Duration::from_secs(3600), ..LogOptions::new("gtw_killed") }
}

/// Run by the test below in a process of its own, which it tells by the folder to write to; says what the log
/// acknowledged, as it does, until it is killed. In an ordinary run there is nothing for it to do.
#[test]
#[expect(clippy::print_stderr, reason = "standard error is the pipe to the test")]
fn victim() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let (log, _) = RecordLog::open(Path::new(&dir), options()).unwrap();
    let mut standing = log.begin(&"standing").unwrap();
    for number in 1u64.. {
        let mut entry = log.begin(&number).unwrap();
        entry.progress(&number).unwrap();
        let sequence = entry.close("weir.usage.v1", "k", |sequence| sequence).unwrap();
        standing.progress(&number).unwrap();
        eprintln!("acknowledged {sequence}");
    }
}

#[test]
fn what_was_acknowledged_survives_kill_nine() {
    for kill_after in [1, 37, 400] {
        let dir = tempfile::tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::victim", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stderr.take().unwrap()).lines();
        let heard = |line: String| line.strip_prefix("acknowledged ").and_then(|number| number.parse().ok());
        let mut acknowledged = 0u64;
        while acknowledged < kill_after {
            acknowledged = heard(lines.next().unwrap().unwrap()).unwrap_or(acknowledged);
        }
        victim.kill().unwrap();
        // What it still said before it died counts as well.
        acknowledged = lines.map_while(Result::ok).filter_map(heard).last().unwrap_or(acknowledged);
        victim.wait().unwrap();

        let (log, unclosed) = RecordLog::open(dir.path(), options()).unwrap();
        let standing = &unclosed[0];
        assert_eq!(standing.open::<String>().unwrap(), "standing");
        assert!(standing.progress::<u64>().unwrap().unwrap() >= acknowledged);
        assert!(unclosed.len() <= 2, "at most the one in flight besides");
        log.sync().unwrap();
        let mut cursor = log.cursor();
        let mut sequences = Vec::new();
        loop {
            let batch = cursor.read(1_000, 1 << 20).unwrap();
            if batch.is_empty() {
                break;
            }
            sequences.extend(batch.iter().map(|record| record.sequence));
        }
        let held = sequences.len() as u64;
        assert!(
            held == acknowledged || held == acknowledged + 1,
            "{held} records, {acknowledged} acknowledged"
        );
        assert_eq!(sequences, (1..=held).collect::<Vec<u64>>());
    }
}
