//! `weir down`: stops what runs in this checkout, and waits until it has stopped.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::screen::say;
use crate::up::{KafkaNode, Postgres, StateDir, lock};

/// The gateway's drain, the worker's, and the flush of both, with room.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct DownArgs {}

pub(crate) fn run(_: &DownArgs) -> anyhow::Result<()> {
    let state = StateDir::here()?;
    let ran = lock::is_held_for_good(&state)?;
    if ran {
        let occupant =
            lock::occupant(&state).context("something runs here, but .weir/running.json is unreadable")?;
        say(&format!("stopping weir (process {})", occupant.pid));
        // The pid is the lock holder's: it wrote the file after it got the lock, and it still holds it.
        kill(Pid::from_raw(occupant.pid), Signal::SIGTERM).context("cannot signal it")?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while lock::is_held(&state)? {
            if Instant::now() >= deadline {
                bail!("process {} still runs after {} s", occupant.pid, STOP_TIMEOUT.as_secs());
            }
            std::thread::sleep(POLL);
        }
        say("stopped");
    }
    // After a kill -9 the broker and the database may be all that is left.
    let kafka = KafkaNode::left_over(&state)?;
    let kafka_ran = kafka.is_some();
    if let Some(mut kafka) = kafka {
        say("stopping Kafka, which an earlier run left");
        kafka.stop()?;
    }
    match Postgres::left_over(&state)? {
        Some(mut postgres) => {
            say("stopping Postgres, which an earlier run left");
            postgres.stop()
        }
        None => {
            if !ran && !kafka_ran {
                say("nothing runs");
            }
            Ok(())
        }
    }
}
