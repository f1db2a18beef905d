//! An installation as operators run it: every process of its own, on ports of its own, each of which can be killed and
//! started again while the others go on.

pub mod published;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use tempfile::TempDir;

use crate::api::Api;
use crate::installation::{MODEL, binary};
use crate::private_kafka::PrivateKafka;
use crate::private_postgres::PrivatePostgres;
use crate::wait::until;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the subcommands' names")]
pub enum Part {
    ControlPlane,
    Ledger,
    /// Another consumer in the same group.
    SecondLedger,
    Worker,
    /// Another worker.
    SecondWorker,
    Gateway,
}

impl Part {
    fn subcommand(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Ledger | Self::SecondLedger => "ledger",
            Self::Worker | Self::SecondWorker => "worker",
            Self::Gateway => "gateway",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::SecondLedger => "second-ledger",
            Self::SecondWorker => "second-worker",
            other => other.subcommand(),
        }
    }
}

/// The processes, with the Postgres and the Kafka that they use.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: the processes first.
    running: Mutex<HashMap<Part, Child>>,
    /// The database.
    pub postgres: PrivatePostgres,
    /// The broker, where records do not go straight to the ledger.
    kafka: Option<PrivateKafka>,
    folder: TempDir,
    database_url: String,
    ports: Ports,
    admin_token: String,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    admin: u16,
    config: u16,
    ledger: u16,
    ledger_ops: u16,
    second_ledger: u16,
    second_ledger_ops: u16,
    worker: u16,
    worker_ops: u16,
    second_worker: u16,
    second_worker_ops: u16,
    gateway: u16,
}

impl Cluster {
    /// Starts everything and waits until it serves. `gateway_data` is where the gateway keeps its files, if not beside the
    /// others'.
    pub async fn start(gateway_data: Option<&Path>) -> Self {
        let cluster = Self::without_worker(Some(PrivateKafka::start()), gateway_data, "").await;
        cluster.serve().await
    }

    /// The same without a broker, on simulated devices: `sim` as `[worker.sim]` stands in the file, `own` as what stands
    /// before it.
    pub async fn start_simulated(sim: &str, own: &str) -> Self {
        let worker_lines = format!("device = \"sim\"\n{own}\n[worker.sim]\n{sim}\n");
        Self::without_worker(None, None, &worker_lines).await.serve().await
    }

    async fn serve(self) -> Self {
        self.run(Part::Worker);
        self.publish(published::smollm2(), MODEL, "default").await;
        self.serves().await;
        self
    }

    /// Starts control plane, ledger and gateway, with this broker or none, and does not wait for them. `worker_lines` are for
    /// workers that are started later.
    pub async fn without_worker(
        kafka: Option<PrivateKafka>,
        gateway_data: Option<&Path>,
        worker_lines: &str,
    ) -> Self {
        let folder = tempfile::Builder::new().prefix("weir-cluster-").tempdir().unwrap();
        let postgres = PrivatePostgres::start();
        let database_url = postgres.fresh_database();
        let mut cluster = Self {
            running: Mutex::default(),
            postgres,
            kafka,
            folder,
            database_url,
            ports: Ports::free(),
            admin_token: String::new(),
        };
        cluster.write_files(gateway_data, worker_lines);
        cluster.run(Part::ControlPlane);
        cluster.admin_token = until("the first admin token is shown", || async {
            let screen = cluster.screen(Part::ControlPlane);
            let token = screen.lines().skip_while(|line| !line.contains("first admin token")).nth(1)?;
            Some(token.to_owned())
        })
        .await;
        for part in [Part::Ledger, Part::Gateway] {
            cluster.run(part);
        }
        cluster
    }

    /// The broker of one that was started with it.
    pub fn kafka(&self) -> &PrivateKafka {
        self.kafka.as_ref().expect("this cluster has a broker")
    }

    /// Starts a process that does not run.
    pub fn run(&self, part: Part) {
        let screen = File::options().create(true).append(true).open(self.screen_path(part)).unwrap();
        let mut command = Command::new(binary());
        command.arg(part.subcommand()).arg("--config").arg(self.config_path(part)).stdin(Stdio::null());
        command.stdout(screen.try_clone().unwrap()).stderr(screen).process_group(0);
        let before = self.running.lock().unwrap().insert(part, command.spawn().unwrap());
        assert!(before.is_none(), "the {} runs already", part.name());
    }

    /// Ends a process at once, as a crash does.
    pub fn kill(&self, part: Part) {
        let mut child = self.take(part);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends a process in order, and waits; whether it ended well.
    pub fn stop(&self, part: Part) -> bool {
        self.ask_to_stop(part);
        self.ended(part)
    }

    /// Asks a process to stop, and does not wait.
    pub fn ask_to_stop(&self, part: Part) {
        let id = self.running.lock().unwrap()[&part].id();
        let status = Command::new("kill").args(["-s", "TERM", &id.to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end of a process that was asked to stop; whether it ended well.
    pub fn ended(&self, part: Part) -> bool {
        self.take(part).wait().unwrap().success()
    }

    fn take(&self, part: Part) -> Child {
        self.running.lock().unwrap().remove(&part).unwrap_or_else(|| panic!("no {} runs", part.name()))
    }

    /// Every process that was started and not ended by us runs.
    pub fn check_running(&self) {
        for (part, child) in self.running.lock().unwrap().iter_mut() {
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "the {} ended by itself: {ended:?}\n{}",
                part.name(),
                self.screen(*part)
            );
        }
    }

    /// Waits until a request is answered.
    pub async fn serves(&self) {
        let ready = format!("http://127.0.0.1:{}/readyz", self.ports.gateway);
        until("the gateway is ready", || async {
            self.check_running();
            let response = reqwest::get(&ready).await.ok()?;
            response.status().is_success().then_some(())
        })
        .await;
    }

    /// The platform's operator.
    pub fn operator(&self) -> Api {
        let base_url = format!("http://127.0.0.1:{}/v1", self.ports.gateway);
        let admin_url = format!("http://127.0.0.1:{}/api/v1", self.ports.admin);
        Api::new(&base_url, &admin_url, Some(self.admin_token.clone()))
    }

    /// URL of the database.
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Process id of a part that runs.
    pub fn pid(&self, part: Part) -> u32 {
        self.running.lock().unwrap()[&part].id()
    }

    /// Where the gateway answers.
    pub fn gateway_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.gateway))
    }

    /// URL of the control plane's RPC.
    pub fn config_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.config)
    }

    /// URL of a process' metrics.
    pub fn metrics_url(&self, part: Part) -> String {
        let port = match part {
            Part::ControlPlane => self.ports.admin,
            Part::Ledger => self.ports.ledger_ops,
            Part::SecondLedger => self.ports.second_ledger_ops,
            Part::Worker => self.ports.worker_ops,
            Part::SecondWorker => self.ports.second_worker_ops,
            Part::Gateway => self.ports.gateway,
        };
        format!("http://127.0.0.1:{port}/metrics")
    }

    /// What a process has printed so far.
    pub fn screen(&self, part: Part) -> String {
        std::fs::read_to_string(self.screen_path(part)).unwrap_or_default()
    }

    /// Replaces a line of a process' configuration; it counts from its next start.
    pub fn change(&self, part: Part, line: &str, by: &str) {
        let path = self.config_path(part);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(line), "{text}");
        std::fs::write(path, text.replace(line, by)).unwrap();
    }

    /// Adds a line to a process' own section; it counts from its next start.
    pub fn set(&self, part: Part, line: &str) {
        let path = self.config_path(part);
        let section = format!("[{}]\n", part.subcommand().replace('-', "_"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&section), "{text}");
        std::fs::write(path, text.replace(&section, &format!("{section}{line}\n"))).unwrap();
    }

    /// Runs `weir ledger verify` on everything, as if nothing were on its way any more.
    pub fn verify_all(&self) -> Output {
        let config = self.config_path(Part::Ledger);
        let mut command = Command::new(binary());
        command.args(["ledger", "verify", "--to", "2999-01-01T00:00:00Z", "--config"]).arg(config);
        command.output().unwrap()
    }

    fn screen_path(&self, part: Part) -> PathBuf {
        self.folder.path().join(part.name()).with_extension("log")
    }

    fn config_path(&self, part: Part) -> PathBuf {
        self.folder.path().join(part.name()).with_extension("toml")
    }

    /// The file with the secret of all internal RPC.
    pub fn secret_path(&self) -> PathBuf {
        self.folder.path().join("internal_secret")
    }

    fn write_files(&self, gateway_data: Option<&Path>, worker_lines: &str) {
        // Random enough for a cluster that only this machine can reach.
        std::fs::copy("/proc/sys/kernel/random/uuid", self.secret_path()).unwrap();
        let Ports { admin, config, ledger, ledger_ops, worker, worker_ops, gateway, .. } = self.ports;
        let (second, second_ops) = (self.ports.second_ledger, self.ports.second_ledger_ops);
        let ledger_url = format!(
            "ledger = \"http://127.0.0.1:{ledger}\"\ncontrol_plane = \"http://127.0.0.1:{config}\"\n"
        );
        let database = format!("database_url = \"{}\"\n", self.database_url);
        self.write_config(
            Part::ControlPlane,
            "control_plane",
            None,
            &format!("http_listen = \"127.0.0.1:{admin}\"\nrpc_listen = \"127.0.0.1:{config}\"\n{database}"),
            None,
        );
        for (part, port, ops) in
            [(Part::Ledger, ledger, ledger_ops), (Part::SecondLedger, second, second_ops)]
        {
            self.write_config(
                part,
                "ledger",
                Some(ops),
                &format!("listen = \"127.0.0.1:{port}\"\n{database}"),
                None,
            );
        }
        let (second_worker, second_worker_ops) = (self.ports.second_worker, self.ports.second_worker_ops);
        for (part, port, ops) in
            [(Part::Worker, worker, worker_ops), (Part::SecondWorker, second_worker, second_worker_ops)]
        {
            let own =
                format!("listen = \"127.0.0.1:{port}\"\npool = \"default\"\n{ledger_url}{worker_lines}");
            self.write_config(part, "worker", Some(ops), &own, None);
        }
        let gateway = format!("listen = \"127.0.0.1:{gateway}\"\n{ledger_url}");
        self.write_config(Part::Gateway, "gateway", None, &gateway, gateway_data);
    }

    fn write_config(&self, part: Part, section: &str, ops: Option<u16>, own: &str, data: Option<&Path>) {
        let mut text = String::from("[log]\nfilter = \"info\"\n");
        if let Some(port) = ops {
            write!(text, "[ops]\nlisten = \"127.0.0.1:{port}\"\n").unwrap();
        }
        writeln!(text, "[{section}]\ninternal_secret_file = \"{}\"", self.secret_path().display()).unwrap();
        if section != "ledger" {
            let own = self.folder.path().join(part.name());
            let data = data.unwrap_or(&own);
            std::fs::create_dir_all(data).unwrap();
            writeln!(text, "data_dir = \"{}\"", data.display()).unwrap();
        }
        text.push_str(own);
        if let Some(kafka) = &self.kafka {
            write!(text, "[{section}.kafka]\nbrokers = \"{}\"\n", kafka.brokers()).unwrap();
        }
        std::fs::write(self.config_path(part), text).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let parts: Vec<Part> = self.running.lock().unwrap().keys().copied().collect();
        for part in parts {
            if std::thread::panicking() {
                let screen = self.screen(part);
                let from = screen.len().saturating_sub(4_000);
                let from = (from..).find(|at| screen.is_char_boundary(*at)).unwrap_or_default();
                eprintln!("--- the last that {} printed:\n{}", part.name(), &screen[from..]);
            }
            self.kill(part);
        }
    }
}

impl Ports {
    /// Ports that were free a moment ago. They are given by the kernel, which hands out others for a good while.
    fn free() -> Self {
        let listeners: Vec<TcpListener> =
            (0..11).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let mut ports = listeners.iter().map(|listener| listener.local_addr().unwrap().port());
        let mut next = || ports.next().unwrap();
        Self {
            admin: next(),
            config: next(),
            ledger: next(),
            ledger_ops: next(),
            second_ledger: next(),
            second_ledger_ops: next(),
            worker: next(),
            worker_ops: next(),
            second_worker: next(),
            second_worker_ops: next(),
            gateway: next(),
        }
    }
}
