//! Who runs here: a file lock held for as long as the process lives, with what others need to know in the file.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::state_dir::StateDir;

const FILE: &str = "running.json";
/// A killed process gives its memory back before its locks; gigabytes take tenths of a second.
const VANISH_TIMEOUT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// What the running process tells about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Occupant {
    pub(crate) pid: i32,
    /// Set once it serves.
    pub(crate) base_url: Option<String>,
}

/// Held by the one process that runs this installation.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: Flock<File>,
}

/// The outcome of asking for the lock.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Ours, until dropped.
    Held(RunLock),
    /// Another process has it; the file may still be unwritten.
    Taken(Option<Occupant>),
}

impl RunLock {
    /// Asks for the lock; waits only for a holder that is vanishing.
    pub(crate) fn claim(state: &StateDir) -> anyhow::Result<Claim> {
        if is_held_for_good(state)? {
            return Ok(Claim::Taken(occupant(state)));
        }
        let path = state.path(FILE);
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.with_context(|| format!("cannot open {}", path.display()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => {
                let mut lock = Self { file };
                lock.tell(None)?;
                Ok(Claim::Held(lock))
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(Claim::Taken(occupant(state))),
            Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// Writes who we are and, once it is known, where we serve.
    pub(crate) fn tell(&mut self, base_url: Option<&str>) -> anyhow::Result<()> {
        let pid = i32::try_from(std::process::id()).context("a process id beyond all bounds")?;
        let occupant = Occupant { pid, base_url: base_url.map(str::to_owned) };
        let json = serde_json::to_vec(&occupant)?;
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&json)?;
        Ok(())
    }
}

/// What the file says; its writer may be gone.
pub(crate) fn occupant(state: &StateDir) -> Option<Occupant> {
    serde_json::from_slice(&std::fs::read(state.path(FILE)).ok()?).ok()
}

/// Whether a process holds the lock, and goes on holding it: one that was just killed takes a moment to vanish.
pub(crate) fn is_held_for_good(state: &StateDir) -> anyhow::Result<bool> {
    let deadline = Instant::now() + VANISH_TIMEOUT;
    while is_held(state)? {
        if Instant::now() >= deadline {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    Ok(false)
}

/// Whether a process holds the lock now.
pub(crate) fn is_held(state: &StateDir) -> anyhow::Result<bool> {
    if !state.path(FILE).exists() {
        return Ok(false);
    }
    let file = OpenOptions::new().read(true).write(true).open(state.path(FILE))?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err())
}
