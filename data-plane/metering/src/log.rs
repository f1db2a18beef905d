//! The record log itself: what a sender writes to, and the state that its writer, cursor and keeper share.

mod entry;
mod keeper;
mod options;
mod recovery;
#[cfg(test)]
mod tests;
mod watermark_file;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use entry::{OpenEntry, Unclosed};
pub use options::LogOptions;

use crate::cursor::Cursor;
use crate::error::LogError;
use crate::frame::NO_ENTRY;
use crate::sender::SenderLock;
use keeper::{Keeper, PendingSince};
use writer::Writer;

/// Time between two tries to open a log on a full disk.
const OPEN_RETRY: Duration = Duration::from_secs(1);

/// Tries to get at the log before sleeping on its lock: about 20 microseconds. A write holds it for a few, and to sleep and
/// be woken takes a hundred, which an engine's step loop must not lose.
const SPINS: u32 = 400;

/// An append-only log of one sender's records. Every method returns after at most a few `write`s into the page
/// cache: what it acknowledged survives the process's death, and a power cut once the keeper's next fsync is done.
#[derive(Debug)]
pub struct RecordLog {
    pub(crate) shared: Arc<Shared>,
    keeper: Keeper,
    sender_id: String,
    _lock: SenderLock,
}

/// What the writing side, the keeper's thread and cursors share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) writer: Mutex<Writer>,
    /// Wakes the keeper; used with `writer`.
    pub(crate) wake: Condvar,
    /// How far the log is on disk; cursors read no further, so that nothing is sent that a power cut could undo.
    pub(crate) durable: watch::Sender<Durable>,
    /// The ledger's watermark.
    pub(crate) watermark: watch::Sender<u64>,
    pub(crate) pending_since: Mutex<PendingSince>,
    /// Held by whoever syncs and prunes; never taken while holding `writer`.
    pub(crate) tending: Mutex<()>,
}

/// A place up to which everything is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durable {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// Sequence of the last record on disk.
    pub(crate) sequence: u64,
}

/// Figures for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of all segments.
    pub used_bytes: u64,
    /// Bytes held for open entries.
    pub held_bytes: u64,
    /// The configured bound of `used_bytes`.
    pub max_bytes: u64,
    /// Entries begun and not closed.
    pub open_entries: usize,
    /// Sequence of the last record written.
    pub last_sequence: u64,
    /// The ledger's watermark as last heard.
    pub watermark: u64,
    /// How long the oldest record that the ledger does not have has been here.
    pub lag: Duration,
    /// New entries are refused: no room in the log or on the disk, or an fsync failed.
    pub refusing: bool,
    /// Entries refused since the start.
    pub refused: u64,
}

impl RecordLog {
    /// Opens or creates the log in `dir`, recovers what a crash left, and hands back the entries that were open, for
    /// their owner to close from their last progress. Blocks on disk reads.
    pub fn open(dir: &Path, options: LogOptions) -> Result<(Arc<Self>, Vec<Unclosed>), LogError> {
        options.check()?;
        std::fs::create_dir_all(dir).map_err(LogError::io("create", dir))?;
        let lock = SenderLock::acquire(dir, &options.sender_id)?;
        let recovered = recovery::recover(dir, &options)?;
        let durable = recovered.writer.position();
        let shared = Arc::new(Shared {
            pending_since: Mutex::new(PendingSince::new(
                recovered.watermark,
                durable.sequence,
                Instant::now(),
            )),
            tending: Mutex::new(()),
            writer: Mutex::new(recovered.writer),
            wake: Condvar::new(),
            durable: watch::Sender::new(durable),
            watermark: watch::Sender::new(recovered.watermark),
        });
        let keeper = Keeper::start(Arc::clone(&shared), options.sync_interval)?;
        let log = Arc::new(Self { shared, keeper, sender_id: options.sender_id, _lock: lock });
        let unclosed = recovered
            .unclosed
            .into_iter()
            .map(|found| {
                Unclosed::new(OpenEntry::new(Arc::clone(&log), found.entry), found.open, found.progress)
            })
            .collect();
        Ok((log, unclosed))
    }

    /// Opens as [`RecordLog::open`] does, off the runtime's threads, and waits while the disk is full: a node that
    /// restarts then is there as soon as there is room. A stop ends the wait with [`LogError::DiskFull`].
    pub async fn open_waiting(
        dir: PathBuf,
        options: LogOptions,
        stop: &CancellationToken,
    ) -> Result<(Arc<Self>, Vec<Unclosed>), LogError> {
        let mut said = false;
        loop {
            let (dir, options) = (dir.clone(), options.clone());
            let opened = tokio::task::spawn_blocking(move || Self::open(&dir, options)).await;
            match opened.map_err(|_| LogError::Panicked)? {
                Err(error @ LogError::DiskFull { .. }) if !stop.is_cancelled() => {
                    if !std::mem::replace(&mut said, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(
                            error,
                            "waiting for room to open the record log; nothing is served before"
                        );
                    }
                }
                outcome => return outcome,
            }
            drop(tokio::time::timeout(OPEN_RETRY, stop.cancelled()).await);
        }
    }

    /// Whose log this is.
    pub fn sender_id(&self) -> &str {
        &self.sender_id
    }

    /// Notes that work is about to begin, and holds room for its progress and its close. Call before dispatch; on
    /// [`LogError::Full`] do not dispatch.
    pub fn begin(self: &Arc<Self>, open: &impl Serialize) -> Result<OpenEntry, LogError> {
        let entry = self.write(|writer| writer.open_entry(open))?;
        Ok(OpenEntry::new(Arc::clone(self), entry))
    }

    /// Writes a record that had no open. `payload` is given the record's sequence number.
    pub fn append<T: Serialize>(
        &self,
        topic: &str,
        key: &str,
        payload: impl FnOnce(u64) -> T,
    ) -> Result<u64, LogError> {
        self.write(|writer| writer.record(NO_ENTRY, topic, key, payload))
    }

    /// A reader that starts after the ledger's watermark.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(Arc::clone(&self.shared), *self.shared.watermark.borrow())
    }

    /// A reader of the newest records, whether the ledger has them or not: those within about `max_bytes` from the end
    /// of what the log still holds.
    pub fn recent(&self, max_bytes: u64) -> Cursor {
        let first = self.shared.writer.lock().sequence_within(max_bytes);
        Cursor::new(Arc::clone(&self.shared), first.saturating_sub(1))
    }

    /// Takes the ledger's word that everything up to `watermark` is there; what is older may be deleted.
    pub fn set_watermark(&self, watermark: u64) {
        let changed = self.shared.watermark.send_if_modified(|held| {
            let grows = watermark > *held;
            *held = watermark.max(*held);
            grows
        });
        if changed {
            self.shared.writer.lock().pass_watermark(watermark);
            self.shared.pending_since.lock().pass_watermark(watermark);
            self.shared.wake.notify_one();
        }
    }

    /// Sequences before this one are no longer here.
    pub(crate) fn oldest_sequence(&self) -> u64 {
        self.shared.writer.lock().oldest_sequence()
    }

    /// Figures for gauges.
    pub fn stats(&self) -> LogStats {
        let watermark = *self.shared.watermark.borrow();
        let lag = self.shared.pending_since.lock().lag(Instant::now());
        self.shared.writer.lock().stats(watermark, lag)
    }

    /// Syncs, prunes and prepares now instead of at the keeper's next turn. Blocks on the disk.
    pub fn sync(&self) -> Result<(), LogError> {
        keeper::tend(&self.shared)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        for _ in 0..SPINS {
            if let Some(writer) = self.shared.writer.try_lock() {
                return writer;
            }
            std::hint::spin_loop();
        }
        self.shared.writer.lock()
    }

    pub(crate) fn write<T>(
        &self,
        operation: impl FnOnce(&mut Writer) -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let mut writer = self.writer();
        let was_dirty = writer.dirty();
        let result = operation(&mut writer);
        let wake_keeper = writer.dirty() && !was_dirty;
        drop(writer);
        if wake_keeper {
            self.shared.wake.notify_one();
        }
        result
    }
}

impl Drop for RecordLog {
    fn drop(&mut self) {
        self.keeper.stop(&self.shared);
    }
}
