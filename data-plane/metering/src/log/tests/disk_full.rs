//! A file system that is really full: a small tmpfs in a mount namespace of its own, entered by running this test
//! binary again within it, so that nothing is mounted outside and nothing is left behind.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;

/// Tells the second run where the small file system is.
const MOUNTED: &str = "WEIR_TEST_SMALL_DISK";
/// Room for two dozen of the test options' segments.
const DISK_BYTES: usize = 4 << 20;
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs the named test again with a small file system at hand.
fn on_a_small_disk(test: &str) {
    let dir = TempDir::new().unwrap();
    let script =
        format!("mount -t tmpfs -o size={DISK_BYTES} tmpfs \"$0\" && exec \"$1\" --exact \"$2\" --nocapture");
    let enter = |namespaces: &[&str]| {
        Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-c", &script])
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(MOUNTED, dir.path())
            .output()
            .expect("`unshare` (util-linux) is needed")
    };
    // As root, or as anyone where the kernel allows user namespaces.
    let mut output = enter(&["--mount"]);
    if !output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("running 1 test") {
        output = enter(&["--user", "--map-root-user", "--mount"]);
    }
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn small_disk() -> Option<PathBuf> {
    std::env::var_os(MOUNTED).map(PathBuf::from)
}

/// Takes every free byte, as another program's logs would.
fn fill(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    for piece in [64 << 10, 4 << 10, 1] {
        while std::io::Write::write_all(&mut file, &vec![1; piece]).is_ok() {}
    }
    ballast
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The bound of the log is above what the disk has.
fn large_log(disk: &Path) -> (Arc<RecordLog>, Vec<Unclosed>) {
    let options = LogOptions { max_bytes: 1 << 30, sync_interval: Duration::from_millis(5), ..options() };
    RecordLog::open(&disk.join("log"), options).unwrap()
}

#[test]
fn a_full_disk_refuses_new_entries_finishes_running_ones_and_heals() {
    let Some(disk) = small_disk() else {
        return on_a_small_disk(
            "log::tests::disk_full::a_full_disk_refuses_new_entries_finishes_running_ones_and_heals",
        );
    };
    let (log, _) = large_log(&disk);
    // A backlog of a few segments, as the ledger's absence leaves it.
    write_many(&log, 60, 10_000);
    let mut running: Vec<_> = (0..5).map(|number| log.begin(&number).unwrap()).collect();
    log.sync().unwrap();
    let ballast = fill(&disk);
    // What is allocated already is used up first.
    let mut begun = Vec::new();
    let refused = loop {
        match log.begin(&"more") {
            Ok(entry) => begun.push(entry),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, LogError::DiskFull { .. }), "{refused}");
    assert!(log.stats().refusing && log.stats().refused >= 1);
    // Everything that was begun writes all that it may and closes.
    let largest = "x".repeat(crate::MAX_PAYLOAD_BYTES - 2);
    for entry in running.iter_mut().chain(&mut begun) {
        for _ in 0..10 {
            entry.progress(&1).unwrap();
        }
        entry.close(TOPIC, "k", |_| &largest).unwrap();
    }
    // What they did not need is used up as well.
    while let Ok(mut entry) = log.begin(&"more") {
        entry.close(TOPIC, "k", |_| &largest).unwrap();
    }
    assert!(log.stats().refusing);
    // The ledger takes it all. The disk stays full, so not even the watermark's file can be written; what the log
    // gives back is enough all the same.
    let last = log.stats().last_sequence;
    log.set_watermark(last);
    eventually("its own segments make room", || {
        log.begin(&"own room").is_ok_and(|mut entry| entry.close(TOPIC, "k", |_| 1).is_ok())
    });
    assert!(segment_files(&disk.join("log")) <= 4);
    // Full once more; space comes back from outside, and the log finds out without being asked.
    let mut held: Vec<_> = std::iter::from_fn(|| log.begin(&"again").ok()).collect();
    assert!(log.stats().refusing);
    fs::remove_file(ballast).unwrap();
    eventually("it takes new entries again", || !log.stats().refusing);
    held.push(log.begin(&"room").unwrap());
    for entry in &mut held {
        entry.close(TOPIC, "k", |_| "closed").unwrap();
    }
    let end = log.stats().last_sequence;
    drop((held, running, begun, log));
    let (log, unclosed) = large_log(&disk);
    assert!(unclosed.is_empty());
    assert_eq!(log.stats().last_sequence, end, "nothing was lost, no number is used twice");
    let kept = sequences(&all(&log, last));
    assert_eq!(kept, (last + 1..=end).collect::<Vec<u64>>());
}

#[test]
fn a_start_on_a_full_disk_recovers_with_the_room_that_the_last_run_left() {
    let Some(disk) = small_disk() else {
        return on_a_small_disk(
            "log::tests::disk_full::a_start_on_a_full_disk_recovers_with_the_room_that_the_last_run_left",
        );
    };
    let (log, _) = large_log(&disk);
    let mut unfinished = log.begin(&"unfinished").unwrap();
    unfinished.progress(&7).unwrap();
    // Over half of the active segment, so that there is a spare.
    let last = write_many(&log, 10, 10_000);
    log.sync().unwrap();
    // As a crash would leave it: with that spare and the active segment's unused tail.
    let ballast = fill(&disk);
    drop((unfinished, log));
    let (log, mut unclosed) = large_log(&disk);
    assert_eq!(unclosed[0].progress::<u32>().unwrap(), Some(7));
    assert_eq!(unclosed[0].entry.close(TOPIC, "k", |_| "recovered").unwrap(), last + 1);
    assert_eq!(sequences(&all(&log, 0)), (1..=last + 1).collect::<Vec<u64>>());
    drop((unclosed, log, ballast));
}

#[test]
fn a_start_without_any_room_waits_for_it_and_a_stop_ends_the_wait() {
    let Some(disk) = small_disk() else {
        return on_a_small_disk(
            "log::tests::disk_full::a_start_without_any_room_waits_for_it_and_a_stop_ends_the_wait",
        );
    };
    fs::create_dir(disk.join("log")).unwrap();
    fs::write(disk.join("log/sender"), "gtw_1").unwrap();
    fs::write(disk.join("log/sender.lock"), "").unwrap();
    let ballast = fill(&disk);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let waiting = RecordLog::open_waiting(disk.join("log"), options(), &stop);
        let mut waiting = std::pin::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.is_err());
        fs::remove_file(&ballast).unwrap();
        let (log, _) = waiting.await.unwrap();
        write(&log, 1);
        drop(log);
        let _ballast = fill(&disk);
        let stopped = CancellationToken::new();
        stopped.cancel();
        // The last run's room is enough for one; without it there is none.
        for id in crate::segment::list(&disk.join("log")).unwrap() {
            fs::remove_file(crate::segment::segment_path(&disk.join("log"), id)).unwrap();
        }
        let _rest = fill(&disk.join("log"));
        let outcome = RecordLog::open_waiting(disk.join("log"), options(), &stopped).await;
        assert!(matches!(outcome, Err(LogError::DiskFull { .. })));
    });
}
