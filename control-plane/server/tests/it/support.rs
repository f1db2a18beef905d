//! A running control plane on a fresh database, a clock that stands still until moved, and short ways to call it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::DateTime;
use prometheus_client::registry::Registry;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use weir_schemas::clock::Clock;
use weir_schemas::kafka::RawKafka;
use weir_schemas::rpc::auth::InternalSecret;
use weir_server::{Config, Deps, RawConfig, Running};

use crate::private_postgres::PrivatePostgres;

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const START_S: i64 = 1_790_000_000;
/// Far beyond anything that is waited for; only a broken build reaches it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A directory, a database and a clock that outlive a control plane.
pub(crate) struct Installation {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) database_url: String,
    /// Where the event log is relayed to: nowhere, unless a test says otherwise.
    pub(crate) kafka: RawKafka,
    seconds: Arc<AtomicI64>,
}

impl Installation {
    pub(crate) fn new() -> Self {
        Self::on(PrivatePostgres::shared())
    }

    pub(crate) fn on(postgres: &PrivatePostgres) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), SECRET).unwrap();
        Self {
            dir,
            database_url: postgres.fresh_database(),
            kafka: RawKafka::default(),
            seconds: Arc::new(AtomicI64::new(START_S)),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        let seconds = self.seconds.clone();
        Clock::new(move || DateTime::from_timestamp(seconds.load(Ordering::SeqCst), 0).unwrap())
    }

    pub(crate) fn advance(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::SeqCst);
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn config(&self) -> Config {
        let any = "127.0.0.1:0".parse().unwrap();
        Config::try_from(RawConfig {
            http_listen: any,
            rpc_listen: any,
            data_dir: self.data_dir(),
            database_url: self.database_url.clone(),
            internal_secret_file: self.dir.path().join("secret"),
            kafka: self.kafka.clone(),
            ..RawConfig::default()
        })
        .unwrap()
    }

    pub(crate) async fn sql(&self) -> PgConnection {
        PgConnection::connect(&self.database_url).await.unwrap()
    }

    /// Starts a control plane here and waits for its database; `admin` is its bootstrap token, empty after the first
    /// start.
    pub(crate) async fn start(&self) -> ControlPlane {
        let mut plane = self.begin().await;
        plane.prepared().await;
        plane
    }

    /// Starts one without waiting for anything.
    pub(crate) async fn begin(&self) -> ControlPlane {
        let mut registry = Registry::default();
        let cancel = CancellationToken::new();
        let deps = Deps { clock: self.clock(), metrics_text: Arc::new(|| "# EOF\n".to_owned()) };
        let running = weir_server::start(self.config(), deps, &mut registry, cancel.clone()).await.unwrap();
        ControlPlane {
            admin: String::new(),
            base: format!("http://{}", running.http_addr),
            rpc: format!("http://{}", running.rpc_addr),
            client: reqwest::Client::new(),
            registry,
            running,
            cancel,
        }
    }
}

/// A control plane that serves.
pub(crate) struct ControlPlane {
    pub(crate) base: String,
    pub(crate) rpc: String,
    pub(crate) admin: String,
    pub(crate) client: reqwest::Client,
    pub(crate) registry: Registry,
    running: Running,
    cancel: CancellationToken,
}

/// What a call answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    pub(crate) fn etag(&self) -> String {
        self.headers["etag"].to_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if status >= 400 {
            assert_eq!(self.headers["content-type"], "application/problem+json");
            assert_eq!(self.json()["status"], status);
        }
        self.json()
    }
}

impl ControlPlane {
    pub(crate) async fn prepared(&mut self) {
        self.admin = self.running.prepared().await.unwrap().unwrap_or_default();
    }

    /// Asks it to stop, and lets it.
    pub(crate) fn begin_stop(&self) {
        self.cancel.cancel();
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.running.stopped().await;
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let method: Method = method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Answer { status, headers, text: response.text().await.unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &self.admin, &[], None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &self.admin, &[], Some(&body)).await
    }

    pub(crate) async fn tenant(&self, name: &str) -> String {
        let made = self.post("/api/v1/tenants", json!({"name": name})).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// A key of the tenant with these scopes: its id and its token.
    pub(crate) async fn key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        let body = json!({"name": "test", "scopes": scopes});
        let made = self.post(&format!("/api/v1/tenants/{tenant}/keys"), body).await.expect(201);
        (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
    }

    /// A model and a pinned version of it: the version's id.
    pub(crate) async fn version(&self, name: &str) -> String {
        let model = self.post("/api/v1/models", json!({"name": name})).await.expect(201);
        let made = self.post("/api/v1/versions", version_body(&model["id"])).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    /// An alias of one version: its path.
    pub(crate) async fn alias(&self, name: &str, version: &str) -> String {
        let body = json!({"name": name, "targets": [{"version_id": version, "weight": 1}]});
        let made = self.post("/api/v1/aliases", body).await.expect(201);
        format!("/api/v1/aliases/{}", made["id"].as_str().unwrap())
    }

    /// The metrics as text.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

pub(crate) fn version_body(model: &Value) -> Value {
    json!({
        "model_id": model, "weights_uri": "file:///models/a.gguf", "dtype": "Q4_1",
        "digest": format!("sha256:{}", "0".repeat(64)), "parameter_count": 135_000_000,
        "context_limit": 8192, "tokenizer_digest": format!("sha256:{}", "1".repeat(64)),
    })
}

pub(crate) fn secret() -> InternalSecret {
    InternalSecret::new(SECRET).unwrap()
}

/// Waits until `check` gives something.
pub(crate) async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The private signing keys on disk: id and seed.
pub(crate) fn private_keys(data_dir: &Path) -> Vec<(String, [u8; 32])> {
    let files = std::fs::read_dir(data_dir.join("signing-keys")).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let mut seed = [0u8; 32];
            hex::decode_to_slice(std::fs::read_to_string(&path).unwrap().trim(), &mut seed).unwrap();
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), seed)
        })
        .collect()
}
