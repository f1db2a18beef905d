//! A gateway with its peers, and a client.

pub mod client;
pub mod control_plane;
pub mod ledger;
pub mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use weir_gateway::{Config, Deps, RawConfig, Running};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::{ConfigSnapshot, Replica, digest};
use weir_schemas::ids::{GatewayId, InstanceId, WorkerId};
use weir_schemas::rpc::auth::InternalSecret;

use crate::testing::{Issuer, TokenClaims, now, snapshot};
use crate::testing_text::byte_level;
use client::Client;
use control_plane::ControlPlane;
use ledger::Ledger;
use worker::ScriptedWorker;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Far above what any condition here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// Renders `<|im_start|>role\ncontent<|im_end|>` for each message: two tokens, a line break and a token a byte.
pub const TEMPLATE: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";

/// Tokens of a single user message.
pub fn prompt_tokens(content: &str) -> u64 {
    (2 + "user\n".len() + content.len()) as u64
}

/// Everything a test needs; dropped, it is all gone.
pub struct Harness {
    pub gateway: GatewayId,
    pub issuer: Issuer,
    pub token: String,
    pub control_plane: ControlPlane,
    pub ledger: Ledger,
    pub workers: Vec<ScriptedWorker>,
    pub client: Client,
    pub running: Option<Running>,
    pub metrics: Arc<prometheus_client::registry::Registry>,
    pub cancel: CancellationToken,
    /// Hours that the gateway's clock is ahead.
    pub hours: Arc<AtomicI64>,
    raw: RawConfig,
    pub data_dir: tempfile::TempDir,
}

impl Harness {
    /// A gateway with this many workers, ready to serve.
    pub async fn new(workers: usize) -> Self {
        Self::with(workers, |_| (), |_| ()).await
    }

    /// The same with another configuration.
    pub async fn with(
        workers: usize,
        configure: impl FnOnce(&mut RawConfig),
        change: impl FnOnce(&mut ConfigSnapshot),
    ) -> Self {
        Self::with_template(TEMPLATE, workers, configure, change).await
    }

    /// The same with a model that has another chat template.
    pub async fn with_template(
        template: &str,
        workers: usize,
        configure: impl FnOnce(&mut RawConfig),
        change: impl FnOnce(&mut ConfigSnapshot),
    ) -> Self {
        let data_dir = tempfile::tempdir().unwrap();
        let gateway = GatewayId::from_u128(9);
        std::fs::write(data_dir.path().join("node_id"), gateway.to_string()).unwrap();
        let secret_file = data_dir.path().join("secret");
        std::fs::write(&secret_file, SECRET).unwrap();

        let text = weir_text::ModelText { chat_template: Some(template.into()), ..byte_level() }.to_bytes();
        let issuer = Issuer::new(1);
        let mut config = snapshot(&issuer, gateway, &digest(&text));
        let mut scripted = Vec::new();
        for at in 0..workers {
            let id = WorkerId::from_u128(100 + at as u128);
            let worker = ScriptedWorker::start(id, text.clone(), secret()).await;
            config.resources.replicas.push(Replica {
                worker: id,
                instance: InstanceId::from_u128(1),
                address: format!("http://{}", worker.address),
                pool: "default".into(),
            });
            scripted.push(worker);
        }
        change(&mut config);
        let control_plane = ControlPlane::start(config, secret()).await;
        let ledger = Ledger::start(secret()).await;
        let mut raw = RawConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            data_dir: data_dir.path().to_owned(),
            control_plane: format!("http://{}", control_plane.address),
            ledger: format!("http://{}", ledger.address),
            internal_secret_file: secret_file,
            drain_timeout_ms: 5_000,
            ..RawConfig::default()
        };
        configure(&mut raw);
        let token = issuer.token(&TokenClaims::default());
        let mut harness = Self {
            gateway,
            issuer,
            token,
            control_plane,
            ledger,
            workers: scripted,
            client: Client::new(SocketAddr::from(([127, 0, 0, 1], 0))),
            running: None,
            metrics: Arc::default(),
            cancel: CancellationToken::new(),
            hours: Arc::default(),
            raw,
            data_dir,
        };
        harness.start().await;
        if workers > 0 {
            harness.wait_ready().await;
        }
        harness
    }

    /// Starts the gateway (again), on its data directory.
    pub async fn start(&mut self) {
        let mut registry = prometheus_client::registry::Registry::default();
        let hours = self.hours.clone();
        let clock = Clock::new(move || now() + TimeDelta::hours(hours.load(Ordering::Relaxed)));
        let deps = Deps { clock, metrics_text: Arc::new(|| "# EOF\n".to_owned()) };
        self.cancel = CancellationToken::new();
        let config = Config::try_from(self.raw.clone()).unwrap();
        let running = weir_gateway::start(config, deps, &mut registry, self.cancel.clone()).await.unwrap();
        self.client = Client::new(running.http_addr);
        self.metrics = Arc::new(registry);
        self.running = Some(running);
    }

    /// Changes the configuration for the next start.
    pub fn configure(&mut self, change: impl FnOnce(&mut RawConfig)) {
        change(&mut self.raw);
    }

    pub async fn wait_ready(&self) {
        let probe = self.running.as_ref().unwrap().ready_probe();
        eventually("the gateway is ready", || probe().is_ok()).await;
        // Its gauges are refreshed when they are asked for.
        let connected = async {
            loop {
                self.client.get("/metrics", None).await;
                if self.metric("weir_gateway_replicas_connected") == Some(self.workers.len() as f64) {
                    return;
                }
            }
        };
        tokio::time::timeout(DEADLINE, connected).await.expect("every worker is connected");
    }

    /// Stops the gateway and waits for it.
    pub async fn stop(&mut self) {
        self.cancel.cancel();
        if let Some(running) = self.running.take() {
            tokio::time::timeout(DEADLINE, running.stopped()).await.expect("stops in time").unwrap();
        }
    }

    /// One sample of a metric, found by its whole left side.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Requests admitted and not ended, over all models.
    pub fn inflight(&self) -> f64 {
        self.metric("weir_gateway_inflight{model=\"small-model\"}").unwrap_or(0.0)
    }
}

pub fn secret() -> InternalSecret {
    InternalSecret::new(SECRET).unwrap()
}

/// Waits for a condition.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
