//! An installation as operators run it: every process of its own, on ports of its own, each of which can be killed and
//! started again while the others go on.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Api;
use crate::installation::{MODEL, MODEL_FILE, binary, repository};
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
    Gateway,
}

impl Part {
    fn subcommand(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Ledger | Self::SecondLedger => "ledger",
            Self::Worker => "worker",
            Self::Gateway => "gateway",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::SecondLedger => "second-ledger",
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
    gateway: u16,
}

impl Cluster {
    /// Starts everything and waits until it serves. `gateway_data` is where the gateway keeps its files, if not beside the
    /// others'.
    pub async fn start(gateway_data: Option<&Path>) -> Self {
        let model = repository().join(".cache/models").join(MODEL_FILE);
        assert!(model.is_file(), "{} is missing: run `make models`", model.display());
        let cluster = Self::without_worker(Some(PrivateKafka::start()), gateway_data).await;
        cluster.run(Part::Worker);
        cluster.publish(inspect(&model)).await;
        cluster.serves().await;
        cluster
    }

    /// Starts control plane, ledger and gateway, with this broker or none, and does not wait for them.
    pub async fn without_worker(kafka: Option<PrivateKafka>, gateway_data: Option<&Path>) -> Self {
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
        cluster.write_files(gateway_data);
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
            Part::Gateway => self.ports.gateway,
        };
        format!("http://127.0.0.1:{port}/metrics")
    }

    /// What a process has printed so far.
    pub fn screen(&self, part: Part) -> String {
        std::fs::read_to_string(self.screen_path(part)).unwrap_or_default()
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

    fn write_files(&self, gateway_data: Option<&Path>) {
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
        let worker = format!("listen = \"127.0.0.1:{worker}\"\npool = \"default\"\n{ledger_url}");
        self.write_config(Part::Worker, "worker", Some(worker_ops), &worker, None);
        let gateway = format!("listen = \"127.0.0.1:{gateway}\"\n{ledger_url}");
        self.write_config(Part::Gateway, "gateway", None, &gateway, gateway_data);
    }

    fn write_config(&self, part: Part, section: &str, ops: Option<u16>, own: &str, data: Option<&Path>) {
        let mut text = String::from("[log]\nfilter = \"info\"\n");
        if let Some(port) = ops {
            write!(text, "[ops]\nlisten = \"127.0.0.1:{port}\"\n").unwrap();
        }
        write!(text, "[{section}]\n{own}").unwrap();
        writeln!(text, "internal_secret_file = \"{}\"", self.secret_path().display()).unwrap();
        if section != "ledger" {
            let own = self.folder.path().join(part.name());
            let data = data.unwrap_or(&own);
            std::fs::create_dir_all(data).unwrap();
            writeln!(text, "data_dir = \"{}\"", data.display()).unwrap();
        }
        if let Some(kafka) = &self.kafka {
            write!(text, "[{section}.kafka]\nbrokers = \"{}\"\n", kafka.brokers()).unwrap();
        }
        std::fs::write(self.config_path(part), text).unwrap();
    }

    /// Makes a model of this version, priced, deployed to the workers' pool, known as [`MODEL`].
    pub async fn publish(&self, mut version: Value) {
        let operator = self.operator();
        let make = async |path: &str, body: Value| -> Value {
            let (status, made) = operator.control(Method::POST, path, Some(body)).await;
            assert!(status.is_success(), "{path}: {status} {made}");
            made
        };
        let model = make("/models", json!({"name": "SmolLM2-135M-Instruct"})).await;
        version["model_id"] = model["id"].clone();
        let version = make("/versions", version).await["id"].clone();
        let book = make("/price-books", json!({"name": "faults", "currency": "USD"})).await;
        let prices = json!({"version_id": version, "prompt_per_million": "0.10", "cached_prompt_per_million": "0.05",
            "generated_per_million": "0.40"});
        make(&format!("/price-books/{}/prices", book["id"].as_str().unwrap()), prices).await;
        make("/deployments", json!({"version_id": version, "pool": "default"})).await;
        make("/aliases", json!({"name": MODEL, "targets": [{"version_id": version, "weight": 1}]})).await;
    }
}

/// What a version says of a model file.
fn inspect(file: &Path) -> Value {
    let output = Command::new(binary()).arg("inspect").arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut version: Value = serde_json::from_slice(&output.stdout).unwrap();
    let facts = ["weights_uri", "digest", "dtype", "parameter_count", "context_limit", "tokenizer_digest"];
    version.as_object_mut().unwrap().retain(|name, _| facts.contains(&name.as_str()));
    version
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
            (0..9).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
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
            gateway: next(),
        }
    }
}
