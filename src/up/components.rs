//! The four components in one process, wired to each other by the addresses that they got.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use weir_schemas::kafka::RawKafka;
use weir_worker::Device;

use super::admin::Admin;
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
    /// `host:port`, where there is a broker.
    pub(super) kafka_brokers: Option<String>,
    pub(super) worker_ready: ReadyProbe,
    pub(super) gateway_ready: ReadyProbe,
    /// Usual ports that were taken, and what is used instead.
    pub(super) moved: Vec<(u16, String)>,
}

/// What every component is given.
struct Given<'a> {
    state: &'a StateDir,
    database_url: &'a str,
    internal_secret_file: PathBuf,
    /// Names no broker where there is none.
    kafka: RawKafka,
    process: &'a mut Process,
    stack: &'a mut Stack,
}

/// Starts them all; each is on the stack as soon as it runs, so that a failure further on stops it too.
pub(super) async fn start(
    state: &StateDir,
    database_url: &str,
    device: Device,
    kafka: Option<RawKafka>,
    process: &mut Process,
    stack: &mut Stack,
) -> anyhow::Result<Components> {
    let internal_secret_file = state.secret_file("internal_secret")?;
    let kafka_brokers = kafka.as_ref().map(|kafka| kafka.brokers.clone());
    let kafka = kafka.unwrap_or_default();
    let mut given = Given { state, database_url, internal_secret_file, kafka, process, stack };
    let control_plane = start_control_plane(&mut given).await?;
    let ledger_url = start_ledger(&mut given).await?;
    let worker_ready = start_worker(&mut given, device, &control_plane.rpc_url, &ledger_url).await?;
    let (gateway_addr, gateway_ready) = start_gateway(&mut given, &control_plane.rpc_url, ledger_url).await?;
    given.process.registered();
    let http_addr = control_plane.http_addr;
    let moved = [
        (weir_server::RawConfig::default().http_listen, http_addr),
        (weir_gateway::RawConfig::default().listen, gateway_addr),
    ];
    let moved = moved.into_iter().filter(|(usual, actual)| usual != actual);
    Ok(Components {
        moved: moved.map(|(usual, actual)| (usual.port(), format!("http://{actual}"))).collect(),
        admin_url: admin_url(http_addr),
        admin_token: control_plane.admin_token,
        docs_url: format!("http://{http_addr}/docs/"),
        base_url: format!("http://{gateway_addr}/v1"),
        metrics_url: format!("http://{gateway_addr}/metrics"),
        kafka_brokers,
        worker_ready,
        gateway_ready,
    })
}

fn admin_url(http_addr: SocketAddr) -> String {
    format!("http://{http_addr}/api/v1")
}

struct ControlPlane {
    http_addr: SocketAddr,
    rpc_url: String,
    admin_token: String,
}

async fn start_control_plane(given: &mut Given<'_>) -> anyhow::Result<ControlPlane> {
    let raw = weir_server::RawConfig {
        port_fallback: true,
        data_dir: folder(given.state, "control-plane")?,
        database_url: given.database_url.to_owned(),
        kafka: given.kafka.clone(),
        internal_secret_file: given.internal_secret_file.clone(),
        ..weir_server::RawConfig::default()
    };
    let config = weir_server::Config::try_from(raw)?;
    let cancel = CancellationToken::new();
    let deps = weir_server::Deps { clock: Process::clock(), metrics_text: given.process.metrics_text() };
    let mut server = weir_server::start(config.clone(), deps, &mut given.process.registry, cancel.clone())
        .await
        .context("the control plane did not start")?;
    let (http_addr, rpc_url) = (server.http_addr, format!("http://{}", server.rpc_addr));
    let bootstrap_token = server.prepared().await.context("the control plane did not start")?;
    given.stack.push("control plane", cancel, server.stopped());
    let admin_token = admin_token(given.state, bootstrap_token, &config, &admin_url(http_addr)).await?;
    Ok(ControlPlane { http_addr, rpc_url, admin_token })
}

async fn start_ledger(given: &mut Given<'_>) -> anyhow::Result<String> {
    let raw = weir_ledger::RawConfig {
        port_fallback: true,
        database_url: given.database_url.to_owned(),
        kafka: given.kafka.clone(),
        internal_secret_file: given.internal_secret_file.clone(),
        ..weir_ledger::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_ledger::Deps { clock: Process::clock() };
    let ledger = weir_ledger::start(raw.try_into()?, deps, &mut given.process.registry, cancel.clone())
        .await
        .context("the ledger did not start")?;
    let url = format!("http://{}", ledger.rpc_addr);
    given.stack.push("ledger", cancel, ledger.stopped());
    Ok(url)
}

async fn start_worker(
    given: &mut Given<'_>,
    device: Device,
    control_plane: &str,
    ledger: &str,
) -> anyhow::Result<ReadyProbe> {
    let raw = weir_worker::RawConfig {
        port_fallback: true,
        data_dir: folder(given.state, "worker")?,
        pool: POOL.to_owned(),
        device,
        control_plane: control_plane.to_owned(),
        ledger: ledger.to_owned(),
        kafka: given.kafka.clone(),
        internal_secret_file: given.internal_secret_file.clone(),
        drain_timeout_ms: DRAIN_TIMEOUT_MS,
        kv_memory_max_bytes: KV_MEMORY_MAX_BYTES,
        ..weir_worker::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_worker::Deps { clock: Process::clock() };
    let worker = weir_worker::start(raw.try_into()?, deps, &mut given.process.registry, cancel.clone())
        .await
        .context("the worker did not start")?;
    let ready = worker.ready_probe();
    given.stack.push("worker", cancel, async {
        if let Err(error) = worker.stopped().await {
            tracing::error!(error = &error as &dyn std::error::Error, "the worker failed");
        }
    });
    Ok(ready)
}

async fn start_gateway(
    given: &mut Given<'_>,
    control_plane: &str,
    ledger: String,
) -> anyhow::Result<(SocketAddr, ReadyProbe)> {
    let raw = weir_gateway::RawConfig {
        port_fallback: true,
        data_dir: folder(given.state, "gateway")?,
        control_plane: control_plane.to_owned(),
        ledger,
        kafka: given.kafka.clone(),
        internal_secret_file: given.internal_secret_file.clone(),
        drain_timeout_ms: DRAIN_TIMEOUT_MS,
        ..weir_gateway::RawConfig::default()
    };
    let cancel = CancellationToken::new();
    let deps = weir_gateway::Deps { clock: Process::clock(), metrics_text: given.process.metrics_text() };
    let gateway = weir_gateway::start(raw.try_into()?, deps, &mut given.process.registry, cancel.clone())
        .await
        .context("the gateway did not start")?;
    let outcome = (gateway.http_addr, gateway.ready_probe());
    given.stack.push("gateway", cancel, async {
        if let Err(error) = gateway.stopped().await {
            tracing::error!(error = &error as &dyn std::error::Error, "the gateway failed");
        }
    });
    Ok(outcome)
}

/// The operator's token: told once by the first start, kept in `dev.env`; made anew if it was lost or revoked.
async fn admin_token(
    state: &StateDir,
    bootstrap_token: Option<String>,
    config: &weir_server::Config,
    admin_url: &str,
) -> anyhow::Result<String> {
    if let Some(token) = bootstrap_token {
        return Ok(token);
    }
    if let Some(token) = dev_env::kept(&state.path(dev_env::FILE), "WEIR_ADMIN_TOKEN")
        && Admin::new(admin_url, &token)?.may_read("/tenants?limit=1").await?
    {
        return Ok(token);
    }
    weir_server::issue_admin_token(config, &Process::clock())
        .await
        .context("the admin token was lost, and no other could be made")
}

fn folder(state: &StateDir, name: &str) -> anyhow::Result<PathBuf> {
    let path = state.path(name);
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}
