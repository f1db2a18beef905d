//! The Kafka node of `weir up --with-kafka`: one small broker of our own, data and all in `.weir/kafka`.
//!
//! Like Postgres it runs in its own process group, so that Ctrl-C and the death of `weir` leave it alone; a later start
//! takes over one that still runs. It is known by its command line, which names its folder, so no file can lie about it.

mod node;

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weir_schemas::kafka::RawKafka;

use super::keeper::Program;
use super::postgres::Origin;
use super::state_dir::StateDir;
use node::Node;

/// Where `deploy/setup/kafka.sh` puts the broker's jars.
const JARS: &str = ".cache/kafka/lib";
/// Kafka's own; what clients expect.
const USUAL_PORT: u16 = 9092;
/// One that runs serves at once, or is still replaying its log.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(20);
/// A node that is alone has nobody to hand over to: it flushes and ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// A broker that serves.
#[derive(Debug)]
pub(crate) struct KafkaNode {
    node: Node,
    /// Ours to wait for, unless it was adopted. Never killed by our own end.
    child: Option<Child>,
}

impl KafkaNode {
    /// Finds it running, or starts it; either way it serves afterwards. Blocks.
    pub(super) fn start(state: &StateDir) -> anyhow::Result<(Self, Origin)> {
        if let Some(mut running) = Self::left_over(state)? {
            let deadline = Instant::now() + ADOPT_TIMEOUT;
            while Instant::now() < deadline {
                if running.node.serves() {
                    return Ok((running, Origin::Adopted));
                }
                std::thread::sleep(POLL);
            }
            tracing::warn!("Kafka runs but does not serve; restarting it");
            running.stop()?;
        }
        let home = state.path("kafka");
        DirBuilder::new().recursive(true).mode(0o700).create(&home)?;
        let node = Node::new(&home, &jars()?, Some(USUAL_PORT))?;
        let is_new = !node.data().join("meta.properties").exists();
        node.prepare("").context("is Java 17 installed? run: deploy/setup/install.sh kafka")?;
        let mut kafka = Self { node, child: None };
        if let Err(error) = kafka.spawn() {
            kafka.stop()?;
            return Err(error);
        }
        Ok((kafka, if is_new { Origin::Created } else { Origin::Started }))
    }

    /// One that still runs from an earlier start.
    pub(crate) fn left_over(state: &StateDir) -> anyhow::Result<Option<Self>> {
        let home = state.path("kafka");
        let folder = std::env::current_dir()?.join(JARS);
        let Some(node) = Node::of_last_start(&home, &folder) else { return Ok(None) };
        let kafka = Self { node, child: None };
        Ok(kafka.pid()?.map(|_| kafka))
    }

    /// `host:port`.
    pub(super) fn address(&self) -> String {
        self.node.address()
    }

    /// The components' `kafka` table.
    pub(super) fn settings(&self) -> RawKafka {
        self.node.client_settings()
    }

    /// Stops it and waits. Blocks.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let Some(pid) = self.pid()? else { return Ok(()) };
        let mut signal = Signal::SIGTERM;
        for _ in 0..2 {
            match kill(pid, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).context("cannot signal Kafka"),
            }
            if self.has_ended_within(STOP_TIMEOUT)? {
                return Ok(());
            }
            // Nothing is lost by it: what was acknowledged is in the file.
            tracing::warn!("Kafka does not stop; killing it");
            signal = Signal::SIGKILL;
        }
        bail!("Kafka does not stop")
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        // Java's own last words; Kafka's log is beside it.
        let screen = self.node.home().join("screen.log");
        let screen = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(screen)?;
        let mut command = self.node.command();
        command.stdout(screen.try_clone()?).stderr(screen).process_group(0);
        let child = self.child.insert(command.spawn().context("cannot run java")?);
        let is_running = || matches!(child.try_wait(), Ok(None));
        self.node.wait_until_it_serves(is_running).map_err(anyhow::Error::msg)
    }

    fn has_ended_within(&mut self, timeout: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = match &mut self.child {
                Some(child) => child.try_wait()?.is_some(),
                None => self.pid()?.is_none(),
            };
            if ended || Instant::now() >= deadline {
                return Ok(ended);
            }
            std::thread::sleep(POLL);
        }
    }

    /// The process, if it runs.
    fn pid(&self) -> anyhow::Result<Option<Pid>> {
        let wanted = Node::mark(self.node.home());
        for entry in std::fs::read_dir("/proc").context("cannot list processes")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that ended meanwhile, or that is another user's, is not ours.
            let Ok(command_line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            let mut words = command_line.split(|&byte| byte == 0);
            if words.any(|word| word == wanted.as_bytes()) {
                return Ok(Some(Pid::from_raw(pid)));
            }
        }
        Ok(None)
    }
}

impl Program for KafkaNode {
    const NAME: &'static str = "Kafka";

    fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => matches!(self.pid(), Ok(None)),
        }
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        self.spawn()
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        Self::stop(self)
    }
}

fn jars() -> anyhow::Result<PathBuf> {
    let jars = std::env::current_dir()?.join(JARS);
    if !jars.is_dir() {
        bail!("{JARS} is missing; fetch the broker with: deploy/setup/kafka.sh");
    }
    Ok(jars)
}
