//! The four components in one process, wired to each other by the addresses that they got.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::dev_env;
use super::first_run::POOL;
use super::stack::Stack;
use super::state_dir::StateDir;
use crate::process::Process;

/// How long running requests may go on when `weir up` is asked to stop: someone waits at the keyboard.
const DRAIN_TIMEOUT_MS: u64 = 10_000;

/// Bound of the KV pool's share of memory: five requests of full length for the model here, and no more of a large
/// machine than someone who tries Weir out expects.
const KV_MEMORY_MAX_BYTES: u64 = 1 << 30;

/// Answers whether a component can serve, and if not, why.
type ReadyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Where the components are reached.
pub(super) struct Components {
    /// `…/api/v1`.
    pub(super) admin_url: String,
    pub(super) admin_token: String,
    pub(super) docs_url: String,
    /// `…/v1`.
    pub(super) base_url: String,
    pub(super) metrics_url: String,
    pub(super) worker_ready: ReadyProbe,
    pub(super) gateway_ready: ReadyProbe,
    /// Usual ports that were taken, and what is used instead.
    pub(super) moved: Vec<(u16, String)>,
}

/// Starts them all; each is on the stack as soon as it runs, so that a failure further on stops it too.
pub(super) async fn start(
    state: &StateDir,
    database_url: &str,
    process: &mut Process,
    stack: &mut Stack,
) -> anyhow::Result<Components> {
    let internal_secret_file = state.secret_file("internal_secret")?;
    let clock = Process::clock();
    let metrics_text = process.metrics_text();

    let raw = weir_server::RawConfig {
        port_fallback: true,
        data_dir: folder(state, "control-plane")?,
        database_url: database_url.to_owned(),
        internal_secret_file: internal_secret_file.clone(),
        ..weir_server::RawConfig::default()
    };
    let config = weir_server::Config::try_from(raw)?;
    let cancel = CancellationToken::new();
    let deps = weir_server::Deps { clock: clock.clone(), metrics_text: metrics_text.clone() };
    let mut server = weir_server::start(config.clone(), deps, &mut process.registry, cancel.clone())
        .await
        .context("the control plane did not start")?;
    let admin_token = admin_token(state, server.bootstrap_token.take(), &config).await?;
    let (http_addr, control_plane) = (server.http_addr, format!("http://{}", server.rpc_addr));
    stack.push("control plane", cancel, server.stopped());

    let raw = weir_ledger::RawConfig {
        port_fallback: true,
        database_url: database_url.to_owned(),
        internal_secret_file: internal_secret_file.clone(),
        ..weir_ledger::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_ledger::Deps { clock: clock.clone() };
    let ledger = weir_ledger::start(raw.try_into()?, deps, &mut process.registry, cancel.clone())
        .await
        .context("the ledger did not start")?;
    let ledger_url = format!("http://{}", ledger.rpc_addr);
    stack.push("ledger", cancel, ledger.stopped());

    let raw = weir_worker::RawConfig {
        port_fallback: true,
        data_dir: folder(state, "worker")?,
        pool: POOL.to_owned(),
        control_plane: control_plane.clone(),
        ledger: ledger_url.clone(),
        internal_secret_file: internal_secret_file.clone(),
        drain_timeout_ms: DRAIN_TIMEOUT_MS,
        kv_memory_max_bytes: KV_MEMORY_MAX_BYTES,
        ..weir_worker::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_worker::Deps { clock: clock.clone() };
    let worker = weir_worker::start(raw.try_into()?, deps, &mut process.registry, cancel.clone())
        .await
        .context("the worker did not start")?;
    let worker_ready = worker.ready_probe();
    stack.push("worker", cancel, worker.stopped());

    let raw = weir_gateway::RawConfig {
        port_fallback: true,
        data_dir: folder(state, "gateway")?,
        control_plane,
        ledger: ledger_url,
        internal_secret_file,
        drain_timeout_ms: DRAIN_TIMEOUT_MS,
        ..weir_gateway::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_gateway::Deps { clock, metrics_text };
    let gateway = weir_gateway::start(raw.try_into()?, deps, &mut process.registry, cancel.clone())
        .await
        .context("the gateway did not start")?;
    let (gateway_ready, gateway_addr) = (gateway.ready_probe(), gateway.http_addr);
    stack.push("gateway", cancel, async {
        if let Err(error) = gateway.stopped().await {
            tracing::error!(error = &error as &dyn std::error::Error, "the gateway failed");
        }
    });
    process.registered();
    let moved = [
        (weir_server::RawConfig::default().http_listen, http_addr),
        (weir_gateway::RawConfig::default().listen, gateway_addr),
    ];
    let moved = moved.into_iter().filter(|(usual, actual)| usual != actual);
    Ok(Components {
        moved: moved.map(|(usual, actual)| (usual.port(), format!("http://{actual}"))).collect(),
        admin_url: format!("http://{http_addr}/api/v1"),
        admin_token,
        docs_url: format!("http://{http_addr}/docs/"),
        base_url: format!("http://{gateway_addr}/v1"),
        metrics_url: format!("http://{gateway_addr}/metrics"),
        worker_ready,
        gateway_ready,
    })
}

/// The operator's token: told once by the first start, kept in `dev.env`; made anew if that was lost.
async fn admin_token(
    state: &StateDir,
    bootstrap_token: Option<String>,
    config: &weir_server::Config,
) -> anyhow::Result<String> {
    match bootstrap_token.or_else(|| dev_env::kept(&state.path(dev_env::FILE), "WEIR_ADMIN_TOKEN")) {
        Some(token) => Ok(token),
        None => weir_server::issue_admin_token(config, &Process::clock())
            .await
            .context("the admin token was lost, and no other could be made"),
    }
}

fn folder(state: &StateDir, name: &str) -> anyhow::Result<PathBuf> {
    let path = state.path(name);
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
