//! What can go wrong in the record log.

use std::io;
use std::path::{Path, PathBuf};

/// Why the record log did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// No room that is not held for open requests: refuse new work until the ledger's watermark moves.
    #[error(
        "the record log is full: {used_bytes} of at most {max_bytes} bytes in use, {held_bytes} held for open entries"
    )]
    Full {
        /// Bytes on disk.
        used_bytes: u64,
        /// Bytes held for the progress and close of open entries.
        held_bytes: u64,
        /// The configured bound.
        max_bytes: u64,
    },
    /// The file system has no room for another segment: refuse new work until there is some. What open entries may
    /// still write was allocated before.
    #[error("the file system of {path} has no room for another record log segment", path = path.display())]
    DiskFull {
        /// The segment that could not be allocated.
        path: PathBuf,
    },
    /// The disk refused.
    #[error("cannot {action} {path}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An fsync failed earlier: what the kernel held may be gone, so nothing new is begun until a restart re-reads
    /// the log. Open entries can still be closed.
    #[error("the record log takes no new entries: an earlier fsync failed; restart to re-read it")]
    SyncFailed,
    /// The thread that opened the log panicked; the panic hook has said where.
    #[error("opening the record log panicked")]
    Panicked,
    /// Another process holds this log.
    #[error("another process holds the record log at {path}", path = path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The log belongs to another sender; sequence numbers of two senders must not mix.
    #[error("the record log belongs to sender {found}, not to {expected}")]
    OtherSender {
        /// Who this process is.
        expected: String,
        /// Whose log it is.
        found: String,
    },
    /// The payload has no JSON form.
    #[error("the payload cannot be encoded")]
    Encode(#[source] serde_json::Error),
    /// The payload, topic or key is longer than a frame may hold.
    #[error("{what} of {bytes} bytes is longer than {limit}")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The entry was closed before.
    #[error("the entry is closed already")]
    Closed,
    /// The options contradict each other.
    #[error("record log options: {reason}")]
    Options {
        /// What is wrong.
        reason: &'static str,
    },
}

impl LogError {
    /// New work must be refused for now, and the log has said so itself: loudly when it began, by a gauge since.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::DiskFull { .. } | Self::SyncFailed)
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
