//! One small Apache Kafka node, broker and controller in one process: its files, its command, and whether it serves.
//! Who starts and ends the process is another's business: `weir up`, and the tests' starter in
//! `tests/support/private_kafka.rs`, which includes this file.

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weir_schemas::kafka::{Kafka, RawKafka};

/// A JVM's start and the recovery of its log on a machine that is busy building.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);
/// Below the range that the system takes for outgoing connections, so that a node that is away keeps its port.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// What a small installation needs; the JVM itself adds about 100 MB.
const HEAP_MAX: &str = "-Xmx256m";

/// Where a node keeps its files and where it listens, on this machine only.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    home: PathBuf,
    jars: PathBuf,
    pub(crate) port: u16,
    pub(crate) controller_port: u16,
}

impl Node {
    /// A node in `home`, which exists; on the ports of its last start where they are free, else on `usual_port` and
    /// on any other.
    pub(crate) fn new(home: &Path, jars: &Path, usual_port: Option<u16>) -> io::Result<Self> {
        let kept = std::fs::read_to_string(home.join("ports")).unwrap_or_default();
        let mut kept = kept.split_whitespace().map(|port| port.parse::<u16>().ok());
        let (port, controller_port) = (kept.next().flatten(), kept.next().flatten());
        let port = match port.or(usual_port).filter(|&port| is_free(port)) {
            Some(port) => port,
            None => free_port()?,
        };
        let controller_port = match controller_port.filter(|&port| is_free(port)) {
            Some(controller_port) => controller_port,
            None => free_port()?,
        };
        std::fs::write(home.join("ports"), format!("{port} {controller_port}\n"))?;
        Ok(Self { home: home.to_owned(), jars: jars.to_owned(), port, controller_port })
    }

    /// One that may still run, on the ports of its last start.
    pub(crate) fn of_last_start(home: &Path, jars: &Path) -> Option<Self> {
        let ports = std::fs::read_to_string(home.join("ports")).ok()?;
        let (port, controller_port) = ports.trim().split_once(' ')?;
        Some(Self {
            home: home.to_owned(),
            jars: jars.to_owned(),
            port: port.parse().ok()?,
            controller_port: controller_port.parse().ok()?,
        })
    }

    /// Where clients find it.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A client's settings.
    pub(crate) fn client_settings(&self) -> RawKafka {
        RawKafka { brokers: self.address(), ..RawKafka::default() }
    }

    /// Its folder.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The file that it logs to.
    pub(crate) fn log(&self) -> PathBuf {
        self.home.join("server.log")
    }

    /// Writes its settings, `extra` at their end, and formats its data folder if it has none. Blocks.
    pub(crate) fn prepare(&self, extra: &str) -> io::Result<()> {
        std::fs::write(self.home.join("server.properties"), self.settings() + extra)?;
        std::fs::write(self.home.join("log4j2.properties"), LOG_SETTINGS)?;
        if self.data().join("meta.properties").exists() {
            return Ok(());
        }
        // A folder without it is a first start that was cut short.
        match std::fs::remove_dir_all(self.data()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut format = self.java();
        format.args(["kafka.tools.StorageTool", "format", "-t", &cluster_id()?, "-c"]);
        let output = format.arg(self.home.join("server.properties")).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "Kafka's data folder could not be formatted: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    /// The process itself; it runs in the foreground until SIGTERM.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.java();
        command.arg("kafka.Kafka").arg(self.home.join("server.properties"));
        command.stdin(Stdio::null());
        command
    }

    /// Waits until it serves: it answers, and every partition has its leader back. Gives up when `is_running` says
    /// no. Blocks.
    pub(crate) fn wait_until_it_serves(&self, mut is_running: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.serves() {
            let log = self.log();
            if !is_running() {
                return Err(format!("Kafka ended; its log is {}", log.display()));
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "Kafka does not serve after {} s; its log is {}",
                    START_TIMEOUT.as_secs(),
                    log.display()
                ));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether it answers a metadata request, and every partition has a leader. Blocks.
    pub(crate) fn serves(&self) -> bool {
        let Ok(Some(kafka)) = Option::<Kafka>::try_from(self.client_settings()) else { return false };
        kafka
            .describe(DESCRIBE_TIMEOUT)
            .is_ok_and(|cluster| cluster.brokers > 0 && cluster.leaderless_partitions == 0)
    }

    /// The word on its command line that tells a node's process from any other.
    pub(crate) fn mark(home: &Path) -> String {
        format!("-Dweir.home={}", home.display())
    }

    /// A tool of Kafka's, or the node itself: the class is to be added.
    pub(crate) fn java(&self) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xms64m", HEAP_MAX, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        java.args(["-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]);
        java.arg(Self::mark(&self.home));
        java.arg(format!("-Dlog4j2.configurationFile={}", self.home.join("log4j2.properties").display()));
        java.arg("-cp").arg(self.jars.join("*"));
        java
    }

    fn settings(&self) -> String {
        let Self { port, controller_port, .. } = self;
        let data = self.data();
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller_port}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             controller.listener.names=CONTROLLER\n\
             inter.broker.listener.name=PLAINTEXT\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
             log.dirs={}\n{SETTINGS}",
            data.display()
        )
    }
}

/// One node has no replicas; everything is small; and after a kill it waits no longer than six seconds for its own
/// old session to end.
const SETTINGS: &str = "\
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=2
log.segment.bytes=16777216
log.retention.bytes=67108864
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=2097152
";

/// A log of at most three files.
const LOG_SETTINGS: &str = "\
appender.file.type = RollingFile
appender.file.name = FILE
appender.file.fileName = ${sys:weir.home}/server.log
appender.file.filePattern = ${sys:weir.home}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 4MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = FILE
";

/// 16 random bytes in base64 for URLs, as Kafka wants them.
fn cluster_id() -> io::Result<String> {
    const DIGITS: &[u8; 16] = b"ABCDEFGHIJKLMNOP";
    let mut random = [0; 21];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let mut id = String::with_capacity(22);
    for byte in random {
        id.push(char::from(DIGITS[usize::from(byte % 16)]));
    }
    // The last digit stands for two bits only.
    Ok(id + "A")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A port that nobody has. Processes begin to look at different places, and one process never looks at a place twice:
/// whoever got a port takes seconds until it listens there.
pub(crate) fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(31) % count;
    std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed))
        .take(usize::from(PORTS.end - PORTS.start))
        .filter_map(|step| u16::try_from(start.wrapping_add(step) % count).ok())
        .map(|offset| PORTS.start + offset)
        .find(|port| is_free(*port))
        .ok_or_else(|| io::Error::other("no free port between 20000 and 32000"))
}
