//! `weir up --detach`: a copy of this process goes on in the background; its progress is shown until it serves.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::Choices;
use super::lock::{self, Occupant};
use super::state_dir::StateDir;
use crate::screen::{say, say_part};

const POLL: Duration = Duration::from_millis(50);

/// Starts the copy and waits until it serves, or until it gave up. Ctrl-C here leaves it running.
pub(super) fn run(state: &StateDir, choices: Choices) -> anyhow::Result<()> {
    if lock::is_held_for_good(state)? {
        return wait_for_other(state);
    }
    let path = state.path("log/up.log");
    std::fs::create_dir_all(state.path("log"))?;
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    let program = std::env::current_exe().context("this program's own file is gone")?;
    let mut child = Command::new(program)
        .args(["up", "--in-background"])
        .args(choices.with_kafka.then_some("--with-kafka"))
        .args(["--device", choices.device.name()])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the background process")?;
    let mut shown = File::open(&path)?;
    loop {
        // Asked first, shown second: what it wrote before it ended is then all there.
        let ended = child.try_wait()?;
        show_news(&mut shown)?;
        if let Some(status) = ended {
            bail!("the background process ended ({status}); its output is in {}", path.display());
        }
        if serves(state, Some(child.id())).is_some() {
            show_news(&mut shown)?;
            say(&format!("\nIt goes on in the background (process {}). Stop it with: make down", child.id()));
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

/// Somebody was faster.
fn wait_for_other(state: &StateDir) -> anyhow::Result<()> {
    while lock::is_held(state)? {
        if let Some(url) = serves(state, None) {
            say(&format!("weir already runs in this checkout: {url}"));
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    bail!("another start was under way here and has failed")
}

fn serves(state: &StateDir, pid: Option<u32>) -> Option<String> {
    let Occupant { pid: occupant, base_url } = lock::occupant(state)?;
    let is_meant = pid.is_none_or(|pid| u32::try_from(occupant) == Ok(pid));
    base_url.filter(|_| is_meant)
}

fn show_news(log: &mut File) -> anyhow::Result<()> {
    let mut news = Vec::new();
    log.read_to_end(&mut news)?;
    say_part(&String::from_utf8_lossy(&news));
    Ok(())
}
