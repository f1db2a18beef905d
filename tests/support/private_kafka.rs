//! A private Kafka broker for one test process: one real node in a folder of its own, on ports of its own. Included by
//! `#[path]` from the integration tests of metering, ledger, server and `tests`; it belongs to no crate.
//!
//! It never outlives the test process, not even one that is killed: a small shell holds the read end of a pipe whose
//! write end only this process has, and ends the broker and removes its folder when the pipe closes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::allow_attributes,
    clippy::let_underscore_must_use
)]

#[path = "private_kafka/guarded.rs"]
mod guarded;
#[path = "../../src/up/kafka/node.rs"]
mod node;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use weir_schemas::kafka::{Kafka, RawKafka};

#[allow(unused_imports, reason = "not every test has one that asks who comes")]
pub use guarded::GuardedKafka;
use node::Node;

/// The shell that owns the broker: ends it when standard input closes, i.e. when the test process is gone.
const KEEPER: &str = r#"
home=$1; shift
"$@" >"$home/screen" 2>&1 </dev/null &
broker=$!
echo "$broker" >"$home/pid.new" && mv "$home/pid.new" "$home/pid"
cat >/dev/null
kill -KILL "$broker" 2>/dev/null; wait "$broker" 2>/dev/null
[ -e "$home/keep" ] || rm -rf "$home"
"#;

/// One broker. Dropped, it ends and leaves nothing.
#[derive(Debug)]
pub struct PrivateKafka {
    home: PathBuf,
    node: Node,
    extra_settings: String,
    keeper: Mutex<Option<Child>>,
}

impl PrivateKafka {
    /// The broker that all tests of this process share: each test has topics to itself or senders to itself, and none
    /// of them stops it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PrivateKafka> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A broker of one's own, for tests that stop it.
    pub fn start() -> Self {
        Self::start_in(new_home(), |_| String::new())
    }

    fn start_in(home: PathBuf, extra_settings: impl FnOnce(&Node) -> String) -> Self {
        let node = Node::new(&home, &jars(), None).unwrap();
        let extra_settings = extra_settings(&node);
        let broker = Self { home, node, extra_settings, keeper: Mutex::new(None) };
        broker.resume();
        broker
    }

    /// `host:port`.
    pub fn brokers(&self) -> String {
        self.node.address()
    }

    /// A component's `kafka` table.
    pub fn raw(&self) -> RawKafka {
        self.node.client_settings()
    }

    /// The same, checked.
    pub fn kafka(&self) -> Kafka {
        Option::<Kafka>::try_from(self.raw()).unwrap().unwrap()
    }

    /// Its folder.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Ends the broker at once, as `kill -9` does; its data stays.
    pub fn kill(&self) {
        std::fs::write(self.home.join("keep"), "").unwrap();
        self.end();
    }

    fn end(&self) {
        if let Some(mut keeper) = self.keeper.lock().unwrap().take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    /// Removes the data of a broker that was killed: it comes back empty, on the same port.
    pub fn wipe(&self) {
        assert!(self.keeper.lock().unwrap().is_none(), "kill the broker first");
        std::fs::remove_dir_all(self.node.data()).unwrap();
    }

    /// Starts the broker (again), on the port it always had, and waits until it serves.
    pub fn resume(&self) {
        self.node.prepare(&self.extra_settings).unwrap();
        let _ = std::fs::remove_file(self.home.join("keep"));
        let command = self.node.command();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "kafka-keeper"]).arg(&self.home).arg(command.get_program());
        keeper.args(command.get_args());
        // A group of its own, so that Ctrl-C in a terminal leaves the order of stopping to us.
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut keeper = keeper.spawn().unwrap();
        // The shell itself lives until we end it, whatever becomes of the broker, so the wait's own limit decides.
        let served = self.node.wait_until_it_serves(|| keeper.try_wait().unwrap().is_none());
        *self.keeper.lock().unwrap() = Some(keeper);
        if let Err(reason) = served {
            let screen = std::fs::read_to_string(self.home.join("screen")).unwrap_or_default();
            let log = std::fs::read_to_string(self.node.log()).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            panic!("{reason}\n{screen}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

impl Drop for PrivateKafka {
    fn drop(&mut self) {
        // The keeper removes the folder, too, if this process has no time left for it.
        let _ = std::fs::remove_file(self.home.join("keep"));
        self.end();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// A folder for one broker.
fn new_home() -> PathBuf {
    static BROKERS: AtomicU32 = AtomicU32::new(0);
    let number = BROKERS.fetch_add(1, Ordering::Relaxed);
    let home = std::env::temp_dir().join(format!("weir-kafka-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir(&home).unwrap();
    home
}

/// Where `deploy/setup/kafka.sh` puts them.
fn jars() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_dir.ancestors().find(|folder| folder.join("deploy/setup/kafka.sh").is_file());
    let jars = root.expect("within the repository").join(".cache/kafka/lib");
    assert!(jars.is_dir(), "{} is missing: run deploy/setup/kafka.sh", jars.display());
    jars
}
