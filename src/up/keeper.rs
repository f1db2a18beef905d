//! Keeps a program of ours running beside the components: Postgres, Kafka. Whatever ends it is said, and it is started
//! again; one that does not stay up ends everything, with the reason.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::screen::say;

/// How soon an end is noticed.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// So many restarts within the time below mean that starting it once more will not help.
const RESTARTS_MAX: usize = 5;
const RESTARTS_WITHIN: Duration = Duration::from_secs(300);

/// A program that runs until it is stopped.
pub(super) trait Program: Send + 'static {
    /// What people call it.
    const NAME: &'static str;

    /// Whether its process is gone. Cheap.
    fn has_ended(&mut self) -> bool;

    /// Starts it again, and waits until it serves. Blocks.
    fn start_again(&mut self) -> anyhow::Result<()>;

    /// Stops it and waits; fine if it is gone already. Blocks.
    fn stop(&mut self) -> anyhow::Result<()>;
}

/// Watches one program from a thread of its own, as starting and stopping it blocks.
pub(super) struct Keeper {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<anyhow::Result<()>>,
    gave_up: oneshot::Receiver<String>,
}

impl Keeper {
    /// Takes a program over that serves.
    pub(super) fn of<P: Program>(mut program: P) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (give_up, gave_up) = oneshot::channel();
        let keep = move || {
            if let Err(error) = watch(&mut program, &stopped) {
                // Nobody listens only where everything is being stopped anyway.
                drop(give_up.send(format!("{error:#}")));
                stopped.recv().ok();
            }
            program.stop()
        };
        let thread = std::thread::Builder::new().name(format!("keep-{}", P::NAME)).spawn(keep);
        Ok(Self { stop, thread: thread.context("no thread for a keeper")?, gave_up })
    }

    /// Runs what needs the program. If the program cannot be kept running, everything is asked to stop, and why is the
    /// outcome.
    pub(super) async fn beside(
        &mut self,
        run: impl Future<Output = anyhow::Result<()>>,
        cancel: &CancellationToken,
    ) -> anyhow::Result<()> {
        tokio::pin!(run);
        tokio::select! {
            outcome = &mut run => outcome,
            reason = self.gave_up() => {
                cancel.cancel();
                if let Err(error) = run.await {
                    tracing::error!(error = %format!("{error:#}"), "what ran beside it failed too");
                }
                Err(anyhow!(reason))
            }
        }
    }

    /// Resolves with the reason if the program cannot be kept running.
    async fn gave_up(&mut self) -> String {
        match (&mut self.gave_up).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops the program and waits.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        let stopped = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        stopped.map_err(|_| anyhow!("a keeper panicked"))?
    }
}

/// Until it is to be stopped.
fn watch<P: Program>(program: &mut P, stopped: &mpsc::Receiver<()>) -> anyhow::Result<()> {
    let mut restarts = Vec::new();
    while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if !program.has_ended() {
            continue;
        }
        restarts.retain(|at: &Instant| at.elapsed() < RESTARTS_WITHIN);
        if restarts.len() >= RESTARTS_MAX {
            return Err(anyhow!(
                "{} ended {} times within {} s",
                P::NAME,
                RESTARTS_MAX + 1,
                RESTARTS_WITHIN.as_secs()
            ));
        }
        restarts.push(Instant::now());
        tracing::error!(program = P::NAME, "ended without having been asked to; starting it again");
        say(&format!("weir: {} ended; starting it again", P::NAME));
        program.start_again().with_context(|| format!("{} cannot be started again", P::NAME))?;
        tracing::info!(program = P::NAME, "runs again");
        say(&format!("weir: {} runs again", P::NAME));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Ends at every look for as long as `ends` says.
    struct Falling {
        ends: usize,
        starts: Arc<AtomicUsize>,
        stops: Arc<AtomicUsize>,
    }

    impl Program for Falling {
        const NAME: &'static str = "a test";

        fn has_ended(&mut self) -> bool {
            self.starts.load(Ordering::SeqCst) < self.ends
        }

        fn start_again(&mut self) -> anyhow::Result<()> {
            self.starts.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn stop(&mut self) -> anyhow::Result<()> {
            self.stops.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_ends_is_started_again_and_what_never_stays_ends_everything() {
        let (starts, stops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let falling = |ends| Falling { ends, starts: starts.clone(), stops: stops.clone() };
        let keeper = Keeper::of(falling(1)).unwrap();
        while starts.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        keeper.stop().await.unwrap();
        assert_eq!((starts.load(Ordering::SeqCst), stops.load(Ordering::SeqCst)), (1, 1));
        starts.store(0, Ordering::SeqCst);
        let mut keeper = Keeper::of(falling(usize::MAX)).unwrap();
        assert_eq!(keeper.gave_up().await, "a test ended 6 times within 300 s");
        assert_eq!(starts.load(Ordering::SeqCst), RESTARTS_MAX);
        keeper.stop().await.unwrap();
        assert_eq!(stops.load(Ordering::SeqCst), 2);
    }
}
