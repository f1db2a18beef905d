//! What is known of keys on this gateway's disk, for a day: that a request ran, and its answer once it has one. One
//! file a key, put in place by a rename, so that a crash leaves the old or the new one; what is torn all the same (a
//! power cut) is recognised and removed. Bounded in number and bytes: the oldest goes first.
//!
//! Calls that write or read files block; they belong on a thread for that.

mod file;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use weir_schemas::clock::Clock;

pub(super) use file::{Answer, Run};

/// As long as the ledger charges a key once (`control-plane/ledger/src/store/idempotency.rs`), from the request's
/// arrival: what runs anew after it is charged anew.
const LIFETIME: TimeDelta = TimeDelta::hours(24);
/// Some 300 bytes of memory each.
const MAX_KEYS: usize = 100_000;

/// All keys of this gateway.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
    clock: Clock,
    max_bytes: u64,
    max_keys: usize,
    index: Mutex<Index>,
}

#[derive(Debug, Default)]
struct Index {
    keys: HashMap<String, Entry>,
    /// The same keys, oldest first.
    by_age: BTreeSet<(DateTime<Utc>, String)>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry {
    known: Known,
    received_at: DateTime<Utc>,
    /// Of its file.
    bytes: u64,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// Hash of what was asked.
    pub(super) request: String,
    /// How often it ran.
    pub(super) runs: u32,
    pub(super) is_answered: bool,
}

impl Store {
    /// Reads what the directory holds. Files that are torn or too old are removed.
    pub(crate) fn open(directory: PathBuf, max_bytes: u64, clock: Clock) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let store = Self { directory, clock, max_bytes, max_keys: MAX_KEYS, index: Mutex::default() };
        let mut index = Index::default();
        for file in std::fs::read_dir(&store.directory)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            let intact = if name.ends_with(file::UNFINISHED) { None } else { file::open(&file.path())? };
            match intact {
                Some((run, bytes)) => index.insert(name, run, bytes),
                None => {
                    tracing::warn!(file = name, "an unfinished or torn answer is removed");
                    std::fs::remove_file(file.path())?;
                }
            }
        }
        *store.index.lock() = index;
        store.sweep();
        Ok(store)
    }

    /// From memory.
    pub(super) fn look(&self, name: &str) -> Option<Known> {
        let now = self.clock.now();
        let index = self.index.lock();
        let entry = index.keys.get(name)?;
        (now - entry.received_at < LIFETIME).then(|| entry.known.clone())
    }

    /// Puts a run, with its answer if it has one, in the place of what was known of the key.
    pub(super) fn put(&self, name: &str, run: Run, answer: Option<&Answer>) -> io::Result<()> {
        let unfinished = self.directory.join(format!("{name}{}", file::UNFINISHED));
        let (run, bytes) = file::write(&unfinished, run, answer)?;
        {
            let mut index = self.index.lock();
            std::fs::rename(&unfinished, self.path(name))?;
            index.insert(name.to_owned(), run, bytes);
        }
        self.sweep();
        Ok(())
    }

    /// A finished answer. `None`: there is none, or its file is damaged; then the key is forgotten.
    pub(super) fn read(&self, name: &str) -> Option<Answer> {
        let answer = file::read(&self.path(name));
        if !matches!(answer, Ok(Some(_))) {
            tracing::warn!(key = name, error = ?answer.as_ref().err(), "a kept answer cannot be read; it is removed");
            self.remove(name);
        }
        answer.ok().flatten()
    }

    pub(super) fn remove(&self, name: &str) {
        let mut index = self.index.lock();
        if index.remove(name) {
            self.delete(name);
        }
    }

    /// Removes what is too old, and the oldest of what is too much.
    pub(crate) fn sweep(&self) {
        // One at a time: requests look here meanwhile.
        while self.remove_oldest_if_due() {}
    }

    fn remove_oldest_if_due(&self) -> bool {
        let now = self.clock.now();
        let mut index = self.index.lock();
        let Some((received_at, name)) = index.by_age.first().cloned() else { return false };
        let is_too_much = index.bytes > self.max_bytes || index.keys.len() > self.max_keys;
        let is_due = is_too_much || now - received_at >= LIFETIME;
        if is_due {
            index.remove(&name);
            self.delete(&name);
        }
        is_due
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// With the index locked, so that a newer file of the key is never meant.
    fn delete(&self, name: &str) {
        let path: &Path = &self.path(name);
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(
                ?path,
                error = &error as &dyn std::error::Error,
                "a kept answer cannot be removed"
            );
        }
    }
}

impl Index {
    fn insert(&mut self, name: String, run: Run, bytes: u64) {
        self.remove(&name);
        self.bytes += bytes;
        self.by_age.insert((run.received_at, name.clone()));
        let known = Known { is_answered: run.is_answered(), request: run.request, runs: run.runs };
        self.keys.insert(name, Entry { known, received_at: run.received_at, bytes });
    }

    /// Whether it was there.
    fn remove(&mut self, name: &str) -> bool {
        let Some((name, entry)) = self.keys.remove_entry(name) else { return false };
        self.bytes -= entry.bytes;
        self.by_age.remove(&(entry.received_at, name))
    }
}

#[cfg(test)]
mod tests;
