//! What is measured: each a process of its own before the one backend, with the settings that its makers recommend for
//! production and no more work than it has to do here.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use weir_schemas::config_snapshot::digest;
use weir_tests::cluster::{Cluster, Part};
use weir_tests::installation::{MODEL, repository};
use weir_tests::wait::until;

use crate::load::{Endpoint, is_served};
use crate::process::Child;
use crate::prompt::MODEL_TEXT;
use crate::{backend, bare};

/// The other gateways take any word for a key, and check that it is this one.
const KEY: &str = "sk-0123456789abcdef0123456789abcdef";
/// A limit that is counted against and never reached.
const PLENTY: u64 = 1_000_000_000;

/// A server that is measured.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) pid: u32,
    _child: Option<Child>,
}

/// An installation of Weir with the backend for its worker, and the floor.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) weir: Contender,
    pub(crate) bare: Contender,
    pub(crate) backend: Child,
    pub(crate) cluster: Cluster,
}

impl Ours {
    pub(crate) async fn start() -> Self {
        let cluster = Cluster::without_worker(None, None, "").await;
        let backend = backend::start(cluster.secret_path(), &cluster.config_url()).await;
        cluster.publish(version(), MODEL, "default").await;
        cluster.serves().await;
        let limits = json!({"tokens_per_minute": PLENTY, "requests_per_minute": PLENTY,
            "concurrent_sequences": PLENTY, "max_output_tokens": 4096});
        let tenant = cluster.operator().create_tenant("bench", limits, chrono::Utc::now()).await;
        let endpoint =
            Endpoint { address: cluster.gateway_address(), bearer: tenant.api.key().unwrap().to_owned() };
        let weir = Contender { name: "weir", endpoint, pid: cluster.pid(Part::Gateway), _child: None };
        let bare = Contender::of_child("bare axum", bare::start().await);
        Self { weir, bare, backend, cluster }
    }
}

/// Facts of a model whose weights nobody opens here.
fn version() -> serde_json::Value {
    json!({"weights_uri": "file:///nowhere/SmolLM2-135M-Instruct.gguf", "digest": digest(b"no weights"),
        "dtype": "Q4_1", "parameter_count": 134_515_008, "context_limit": 8192, "tokenizer_digest": digest(MODEL_TEXT)})
}

impl Contender {
    fn of_child(name: &'static str, child: Child) -> Self {
        let endpoint = Endpoint { address: child.address, bearer: KEY.to_owned() };
        Self { name, endpoint, pid: child.pid(), _child: Some(child) }
    }

    /// SGLang's router: one worker to route to, so the policy that costs least; it checks the key, keeps metrics, and no
    /// records.
    pub(crate) async fn sglang_router(backend: SocketAddr, folder: &Path) -> Self {
        let (address, metrics) = (free_address(), free_address());
        let mut command = Command::new(program("sglang-router"));
        command.args(["launch", "--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--worker-urls", &format!("http://{backend}"), "--policy", "round_robin"]);
        command.args(["--prometheus-port", &metrics.port().to_string(), "--api-key", KEY]);
        command.args(["--log-level", "warn", "--max-concurrent-requests", "4096"]);
        Self::of_peer("sglang-router", command, address, "/health", folder).await
    }

    /// LiteLLM's proxy: one process of its server, the master key checked, no database, so neither limits nor records.
    pub(crate) async fn litellm(backend: SocketAddr, folder: &Path) -> Self {
        let address = free_address();
        let config = json!({
            "model_list": [{"model_name": MODEL, "litellm_params": {
                "model": format!("hosted_vllm/{MODEL}"), "api_base": format!("http://{backend}/v1"), "api_key": KEY}}],
            "general_settings": {"master_key": KEY},
            "litellm_settings": {"set_verbose": false, "request_timeout": 600, "num_retries": 0, "telemetry": false},
        });
        // JSON is YAML.
        let path = folder.join("litellm.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(program("litellm"));
        command.arg("--config").arg(&path).args(["--host", "127.0.0.1", "--num_workers", "1"]);
        command.args(["--port", &address.port().to_string()]);
        command.envs([
            ("LITELLM_MODE", "PRODUCTION"),
            ("LITELLM_LOG", "ERROR"),
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        ]);
        Self::of_peer("litellm", command, address, "/health/liveliness", folder).await
    }

    async fn of_peer(
        name: &'static str,
        command: Command,
        address: SocketAddr,
        health: &str,
        folder: &Path,
    ) -> Self {
        let contender = Self::of_child(
            name,
            Child::of_another(command, address, &folder.join(name).with_extension("log")),
        );
        until(name, || async { is_served(&contender.endpoint, health).await.then_some(()) }).await;
        contender
    }
}

/// A program of the environment that `make bench-gateway` makes.
fn program(name: &str) -> PathBuf {
    let path = repository().join(".cache/venv-bench/bin").join(name);
    assert!(path.is_file(), "{} is missing: run `make bench-gateway`", path.display());
    path
}

/// One that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
