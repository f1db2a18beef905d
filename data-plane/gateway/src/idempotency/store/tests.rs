use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::testing::now;

struct Disk {
    directory: tempfile::TempDir,
    hours: Arc<AtomicI64>,
}

impl Disk {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), hours: Arc::default() }
    }

    fn open(&self, max_bytes: u64) -> Store {
        let hours = self.hours.clone();
        let clock = Clock::new(move || now() + TimeDelta::hours(hours.load(Ordering::Relaxed)));
        Store::open(self.directory.path().to_owned(), max_bytes, clock).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }
}

fn run(runs: u32, hour: i64) -> Run {
    Run::new("asked".into(), runs, now() + TimeDelta::hours(hour))
}

fn answer(body: impl Into<bytes::Bytes>) -> Answer {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Answer { status: 200, headers, body: body.into() }
}

#[test]
fn a_run_and_then_its_answer_are_found_again_after_a_restart() {
    let disk = Disk::new();
    let store = disk.open(1 << 20);
    assert_eq!(store.look("a"), None);
    store.put("a", run(1, 0), None).unwrap();
    let ran = Known { request: "asked".into(), runs: 1, is_answered: false };
    assert_eq!((store.look("a"), disk.open(1 << 20).look("a")), (Some(ran.clone()), Some(ran.clone())));
    // A body is bytes: line breaks and what is no UTF-8 included.
    let answer = answer(&b"data: 1\n\ndata: \xff\n\n"[..]);
    store.put("a", run(2, 0), Some(&answer)).unwrap();
    let answered = Known { runs: 2, is_answered: true, ..ran };
    for store in [store, disk.open(1 << 20)] {
        assert_eq!((store.look("a"), store.read("a")), (Some(answered.clone()), Some(answer.clone())));
    }
    assert_eq!(disk.files(), ["a"]);
}

#[test]
fn after_a_day_a_key_is_new_and_its_file_gone() {
    let disk = Disk::new();
    let store = disk.open(1 << 20);
    store.put("a", run(1, 0), Some(&answer("{}"))).unwrap();
    store.put("b", run(1, 1), Some(&answer("{}"))).unwrap();
    disk.hours.store(23, Ordering::Relaxed);
    assert!(store.look("a").is_some());
    disk.hours.store(24, Ordering::Relaxed);
    assert_eq!((store.look("a"), store.look("b").is_some()), (None, true));
    store.sweep();
    assert_eq!(disk.files(), ["b"]);
    disk.hours.store(25, Ordering::Relaxed);
    assert_eq!(disk.open(1 << 20).look("b"), None);
    assert!(disk.files().is_empty());
}

#[test]
fn of_too_many_bytes_or_keys_the_oldest_go_first() {
    let disk = Disk::new();
    // Three files of some 1,230 bytes.
    let store = disk.open(4_500);
    for hour in [2, 0, 1, 3] {
        store.put(&format!("k{hour}"), run(1, hour), Some(&answer(vec![0; 1_000]))).unwrap();
    }
    assert_eq!(disk.files(), ["k1", "k2", "k3"]);
    assert_eq!((store.look("k0"), store.look("k1").is_some()), (None, true));
    // Replacing a key's file counts it once.
    let before = store.index.lock().bytes;
    store.put("k3", run(1, 3), Some(&answer(vec![1; 1_000]))).unwrap();
    assert_eq!(store.index.lock().bytes, before);

    let few = Store { max_keys: 2, ..disk.open(1 << 20) };
    few.put("k4", run(1, 4), None).unwrap();
    assert_eq!(disk.files(), ["k3", "k4"]);
    assert_eq!(few.index.lock().by_age.len(), 2);
}

#[test]
fn torn_and_unfinished_files_are_removed_wherever_they_are_cut() {
    let disk = Disk::new();
    disk.open(1 << 20).put("a", run(1, 0), Some(&answer("0123456789"))).unwrap();
    let path = disk.directory.path().join("a");
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        std::fs::write(disk.directory.path().join("b.unfinished"), &whole).unwrap();
        assert_eq!(disk.open(1 << 20).look("a"), None, "{length}");
        assert!(disk.files().is_empty());
    }
}

#[test]
fn a_damaged_body_is_found_when_it_is_read_and_the_key_forgotten() {
    let disk = Disk::new();
    let store = disk.open(1 << 20);
    for damage in [true, false] {
        store.put("a", run(1, 0), Some(&answer("0123456789"))).unwrap();
        let path = disk.directory.path().join("a");
        if damage {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!((store.read("a"), store.look("a")), (None, None));
        assert!(disk.files().is_empty());
        assert_eq!(store.index.lock().bytes, 0);
    }
}
