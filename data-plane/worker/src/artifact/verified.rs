//! Which files have been hashed, and what came out. A file counts as the same while size, modification time and
//! inode are; losing this file costs one more hashing, so every trouble with it is only logged.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Tells whether a file has been replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStamp {
    pub(super) size_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
    device: u64,
    inode: u64,
}

impl FileStamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            size_bytes: metadata.size(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    stamp: FileStamp,
    digest: String,
}

/// Results of earlier hashing, kept on disk.
#[derive(Debug)]
pub(super) struct Verified {
    path: PathBuf,
    entries: Mutex<HashMap<PathBuf, Entry>>,
}

impl Verified {
    pub(super) fn open(path: PathBuf) -> Self {
        let entries = match std::fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "unreadable list of verified artifacts; starting anew");
                HashMap::new()
            }),
            Err(_) => HashMap::new(),
        };
        Self { path, entries: Mutex::new(entries) }
    }

    pub(super) fn get(&self, artifact: &Path, stamp: &FileStamp) -> Option<String> {
        let entries = self.entries.lock();
        entries.get(artifact).filter(|entry| entry.stamp == *stamp).map(|entry| entry.digest.clone())
    }

    pub(super) fn put(&self, artifact: &Path, stamp: FileStamp, digest: &str) {
        let mut entries = self.entries.lock();
        entries.insert(artifact.to_owned(), Entry { stamp, digest: digest.to_owned() });
        if let Err(error) = store(&self.path, &entries) {
            tracing::warn!(%error, path = %self.path.display(), "the list of verified artifacts was not stored");
        }
    }
}

fn store(path: &Path, entries: &HashMap<PathBuf, Entry>) -> std::io::Result<()> {
    let staging = path.with_extension("new");
    std::fs::write(&staging, serde_json::to_vec_pretty(entries).map_err(std::io::Error::other)?)?;
    std::fs::rename(&staging, path)
}
