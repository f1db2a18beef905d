//! An open entry: from dispatch to close.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RecordLog;
use crate::error::LogError;

/// Work under way. Dropped without [`OpenEntry::close`] it stays open in the log and is handed back at the next
/// start; that is a bug of the owner unless the process is going down, so it is logged.
#[derive(Debug)]
pub struct OpenEntry {
    log: Arc<RecordLog>,
    entry: u64,
    closed: bool,
}

impl OpenEntry {
    pub(super) fn new(log: Arc<RecordLog>, entry: u64) -> Self {
        Self { log, entry, closed: false }
    }

    /// Notes how far the work is: what is charged if this process dies before the close. At least each second. On
    /// [`LogError::Full`] the progress before it stands and the work goes on.
    pub fn progress(&mut self, progress: &impl Serialize) -> Result<(), LogError> {
        if self.closed {
            return Err(LogError::Closed);
        }
        self.log.write(|writer| writer.progress(self.entry, progress))
    }

    /// Ends the entry with its record, which is on its way to the ledger from here on; returns its sequence number.
    /// `payload` is given that number. After an error the entry is still open and the close may be tried again.
    pub fn close<T: Serialize>(
        &mut self,
        topic: &str,
        key: &str,
        payload: impl FnOnce(u64) -> T,
    ) -> Result<u64, LogError> {
        if self.closed {
            return Err(LogError::Closed);
        }
        let sequence = self.log.write(|writer| writer.record(self.entry, topic, key, payload))?;
        self.closed = true;
        Ok(sequence)
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        if !self.closed {
            tracing::error!(
                sender = self.log.sender_id(),
                entry = self.entry,
                "a record log entry was dropped without its close; it is closed at the next start"
            );
        }
    }
}

/// An entry that the previous run left open.
#[derive(Debug)]
pub struct Unclosed {
    /// Close this as recovered.
    pub entry: OpenEntry,
    open: Vec<u8>,
    progress: Option<Vec<u8>>,
}

impl Unclosed {
    pub(super) fn new(entry: OpenEntry, open: Vec<u8>, progress: Option<Vec<u8>>) -> Self {
        Self { entry, open, progress }
    }

    /// What [`RecordLog::begin`] was given.
    pub fn open<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.open)
    }

    /// The last thing that [`OpenEntry::progress`] was given, if any.
    pub fn progress<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.progress.as_deref().map(serde_json::from_slice).transpose()
    }
}
