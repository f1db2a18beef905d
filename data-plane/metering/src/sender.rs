//! Who owns a log directory: a lock that dies with its process, and the sender's id beside the records, because
//! sequence numbers of two senders must never mix.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use crate::error::LogError;

/// Holds the directory for this process as long as it lives.
#[derive(Debug)]
pub(crate) struct SenderLock(#[expect(dead_code, reason = "held for its lock")] File);

impl SenderLock {
    /// Locks `dir` for `sender_id`, or says who has it.
    pub(crate) fn acquire(dir: &Path, sender_id: &str) -> Result<Self, LogError> {
        let path = dir.join("sender.lock");
        let file = File::create(&path).map_err(LogError::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LogError::Locked { path }),
            Err(TryLockError::Error(source)) => return Err(LogError::Io { action: "lock", path, source }),
        }
        claim(dir, sender_id)?;
        Ok(Self(file))
    }
}

fn claim(dir: &Path, sender_id: &str) -> Result<(), LogError> {
    let path = dir.join("sender");
    let found = match fs::read_to_string(&path) {
        Ok(found) => found.trim().to_owned(),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            return replace_file(&path, sender_id);
        }
        Err(source) => return Err(LogError::Io { action: "read", path, source }),
    };
    if found != sender_id {
        return Err(LogError::OtherSender { expected: sender_id.to_owned(), found });
    }
    Ok(())
}

/// Writes a small file so that a crash leaves the old or the new content, nothing between.
pub(crate) fn replace_file(path: &Path, content: &str) -> Result<(), LogError> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, content).map_err(LogError::io("write", &temporary))?;
    File::open(&temporary).and_then(|file| file.sync_all()).map_err(LogError::io("sync", &temporary))?;
    fs::rename(&temporary, path).map_err(LogError::io("rename", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes creations, renames and removals in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(LogError::io("sync", dir))
}
