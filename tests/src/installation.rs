//! A whole installation of one's own: the real binary, `weir up`, in a folder that goes away with it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::wait::PATIENCE;

/// The model that `weir up` serves.
pub const MODEL: &str = "smollm2-135m-instruct";
/// Its file among the models.
pub(crate) const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The binary under test: the one that this build made.
pub fn binary() -> PathBuf {
    // …/release/deps/e2e-… or …/release/bench
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).map(|folder| folder.join("weir")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no `weir` beside {}: run `cargo build --release` first", own.display()))
}

/// `weir up`, running.
#[derive(Debug)]
pub struct Installation {
    folder: TempDir,
    with_kafka: bool,
    child: Option<Child>,
    /// What `.weir/dev.env` says.
    pub env: HashMap<String, String>,
}

impl Installation {
    /// Starts a fresh one and waits until it serves.
    pub fn start() -> Self {
        Self::start_in(false)
    }

    /// The same with a Kafka broker of its own.
    pub fn start_with_kafka() -> Self {
        let jars = repository().join(".cache/kafka/lib");
        assert!(jars.is_dir(), "{} is missing: run deploy/setup/kafka.sh", jars.display());
        Self::start_in(true)
    }

    fn start_in(with_kafka: bool) -> Self {
        let model = repository().join(".cache/models").join(MODEL_FILE);
        assert!(model.is_file(), "{} is missing: run `make models`", model.display());
        let folder = tempfile::Builder::new().prefix("weir-e2e-").tempdir().unwrap();
        std::os::unix::fs::symlink(repository().join(".cache"), folder.path().join(".cache")).unwrap();
        let mut installation = Self { folder, with_kafka, child: None, env: HashMap::new() };
        installation.resume();
        installation
    }

    /// Starts it again after [`Installation::stop`] or [`Installation::kill`].
    pub fn resume(&mut self) {
        let screen = File::options().create(true).append(true).open(self.screen_path()).unwrap();
        let before = std::fs::read_to_string(self.screen_path()).unwrap().len();
        let mut command = Command::new(binary());
        command.arg("up").args(self.with_kafka.then_some("--with-kafka"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        // A group of its own: Ctrl-C on the test run reaches us, and we stop it in order.
        let child =
            command.stdout(screen.try_clone().unwrap()).stderr(screen).process_group(0).spawn().unwrap();
        self.child = Some(child);
        let started = Instant::now();
        // The last lines of a start are for people: how to go on.
        while !self.screen()[before..].contains("OpenAI(") {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "weir up ended: {ended:?}\n{}", self.screen());
            assert!(started.elapsed() < PATIENCE, "weir up does not serve:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = std::fs::read_to_string(self.state_dir().join("dev.env")).unwrap();
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.env = text.lines().filter_map(pair).collect();
    }

    /// Stops it as Ctrl-C does, and waits; whether it ended well.
    pub fn stop(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return true };
        signal(&child, "INT");
        child.wait().unwrap().success()
    }

    /// Ends the process at once, as a crash does. Postgres and Kafka live on.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Process id of `weir up`.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// The folder that it was started in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its `.weir`.
    pub fn state_dir(&self) -> PathBuf {
        self.folder.path().join(".weir")
    }

    /// The process id of its Kafka broker, if one runs.
    pub fn kafka_pid(&self) -> Option<u32> {
        let mark = format!("-Dweir.home={}", self.state_dir().join("kafka").display());
        let is_it = |pid: &u32| {
            let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command_line.split(|&byte| byte == 0).any(|word| word == mark.as_bytes())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
    }

    /// What it has printed so far.
    pub fn screen(&self) -> String {
        std::fs::read_to_string(self.screen_path()).unwrap_or_default()
    }

    fn screen_path(&self) -> PathBuf {
        self.folder.path().join("screen")
    }

    /// Where Postgres keeps its files: within `.weir`, or, as root, where the unprivileged account can reach it.
    pub fn postgres_home(&self) -> PathBuf {
        let within = self.state_dir().join("postgres");
        if within.exists() {
            return within;
        }
        let digest = Sha256::digest(self.state_dir().as_os_str().as_encoded_bytes());
        Path::new("/var/lib/weir").join(hex::encode(&digest[..6]))
    }

    /// URL of its database.
    pub fn database_url(&self) -> String {
        format!("postgres:///weir?host={}&user=weir", self.postgres_home().join("socket").display())
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.stop();
        // A test that killed it leaves Postgres; `weir down` is what a person would say.
        let down = Command::new(binary()).arg("down").current_dir(self.folder.path()).output();
        if std::thread::panicking() {
            eprintln!("--- what weir printed:\n{}", self.screen());
        } else {
            assert!(down.is_ok_and(|output| output.status.success()), "weir down failed");
        }
        drop(std::fs::remove_dir_all(self.postgres_home()));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}
