//! From a checked configuration to a worker that serves, and from the stop signal to one that has drained.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use weir_metering::{
    LogError, LogOptions, RecordLog, Relay, RelayMetrics, RelayOptions, Transport, TransportError,
};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{InstanceId, WorkerId};
use weir_schemas::records::SESSION_LOSS_INTERVAL;
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::config::NodeKind;
use weir_schemas::rpc::config_client::{ConfigClient, ConfigClientOptions, NodeIdentity};
use weir_schemas::rpc::listen;
use weir_schemas::rpc::node_id;
use weir_schemas::rpc::worker::worker_server::WorkerServer;

use crate::artifact::ArtifactStore;
use crate::cache_salt::CacheSalt;
use crate::config::{Config, PREFILL_TOKENS_MIN};
use crate::cuda::NoGpu;
use crate::device::Device;
use crate::execution::ExecutionLog;
use crate::load::Loader;
use crate::metrics::Metrics;
use crate::reconcile;
use crate::rpc::{GrammarCompiler, WorkerService};
use crate::session::Sessions;
use crate::versions::{VersionState, Versions};

/// Largest message from a gateway: a prompt of the longest context as token ids, with room.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// A gateway that vanished without a word is asked for an answer after this, and is gone if none comes until
/// [`SESSION_LOSS_INTERVAL`] is over.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long the ledger may take to confirm the last records; what it does not confirm is sent at the next start.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the drain looks whether the last sequence has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How long a process whose device is lost waits for anything of it to end.
const LOST_TIMEOUT: Duration = Duration::from_secs(10);
/// A step loop with work that has not moved for this long is stuck: no step of a supported model takes as long.
const STALL: Duration = Duration::from_secs(30);

/// What only `main` can make.
#[derive(Debug, Clone)]
pub struct Deps {
    /// The wall clock.
    pub clock: Clock,
}

/// Why a worker that served has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFailed {
    /// The device failed or hung; the log says how.
    #[error("the device is lost; start the worker again once it works")]
    DeviceLost,
    /// A bug.
    #[error("the worker ended abnormally")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Why the worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory is not usable.
    #[error("the worker's data directory {path} is not usable")]
    DataDir {
        /// The directory.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The record log is not usable.
    #[error("the worker's record log is not usable")]
    RecordLog(#[source] LogError),
    /// A GPU was asked for.
    #[error("worker.device is cuda, and the GPU cannot be used; auto or cpu would serve from the CPU")]
    NoGpu(#[source] NoGpu),
    /// The transport to the ledger cannot be made.
    #[error("records cannot be sent to the ledger at {endpoint}")]
    Ledger {
        /// Its address.
        endpoint: String,
        /// The cause.
        #[source]
        source: TransportError,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// Answers whether the worker can serve, and if not, why.
pub type ReadyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A worker that serves.
pub struct Running {
    /// Where its RPC listens.
    pub rpc_addr: SocketAddr,
    versions: Arc<Versions>,
    executions: ExecutionLog,
    device_lost: CancellationToken,
    lifetime: JoinSet<()>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("rpc_addr", &self.rpc_addr).finish_non_exhaustive()
    }
}

impl Running {
    /// Resolves after the stop signal and the drain: sequences ended, records closed and, if the ledger is there,
    /// relayed. Also when the device is lost, after the same but for the drain.
    ///
    /// # Errors
    /// [`WorkerFailed`] if it has not ended because it was asked to: the process is to end too.
    pub async fn stopped(self) -> Result<(), WorkerFailed> {
        let mut lifetime = self.lifetime;
        lifetime.join_next().await.unwrap_or(Ok(())).map_err(WorkerFailed::Panicked)?;
        if self.device_lost.is_cancelled() { Err(WorkerFailed::DeviceLost) } else { Ok(()) }
    }

    /// Ready means: something is loaded, no step loop with work stands still, and what runs can be recorded.
    pub fn ready_probe(&self) -> ReadyProbe {
        let (versions, executions) = (self.versions.clone(), self.executions.clone());
        let device_lost = self.device_lost.clone();
        Arc::new(move || {
            if device_lost.is_cancelled() {
                return Err(WorkerFailed::DeviceLost.to_string());
            }
            ready(&versions, &executions)
        })
    }
}

fn ready(versions: &Versions, executions: &ExecutionLog) -> Result<(), String> {
    if executions.is_refusing() {
        return Err("the record log takes no new request: no room, or its disk failed".to_owned());
    }
    let mut loaded = 0;
    for (id, state) in versions.all() {
        if let VersionState::Ready(version) = state {
            loaded += 1;
            let status = *version.engine.status.borrow();
            if status.load.sequences() > 0 && status.advanced.elapsed() > STALL {
                return Err(format!("the step loop of {id} has not advanced for {} s", STALL.as_secs()));
            }
        }
    }
    if loaded > 0 { Ok(()) } else { Err("no version is loaded".to_owned()) }
}

/// Binds, opens the record log (closing what a crash left open), registers and begins to load.
pub async fn start(
    config: Config,
    deps: Deps,
    registry: &mut Registry,
    cancel: CancellationToken,
) -> Result<Running, StartError> {
    let device = config.device.resolve(&config.cuda).map_err(StartError::NoGpu)?;
    let unusable = |source| StartError::DataDir { path: config.data_dir.display().to_string(), source };
    std::fs::create_dir_all(&config.data_dir).map_err(unusable)?;
    let worker = node_id::load_or_create(&config.data_dir, &deps.clock, WorkerId::new).map_err(unusable)?;
    let instance = InstanceId::new(deps.clock.now());
    let (listener, rpc_addr) = listen::bind(config.listen, config.port_fallback, |_| Ok(()))
        .map_err(|source| StartError::Listen { address: config.listen, source })?;

    let options = LogOptions::new(worker.to_string());
    let (log, unclosed) = RecordLog::open_waiting(config.data_dir.join("record_log"), options, &cancel)
        .await
        .map_err(StartError::RecordLog)?;
    let executions = ExecutionLog::new(log.clone(), worker, instance, deps.clock);
    executions.recover(unclosed);
    let transport = Transport::new(config.kafka.clone(), &config.ledger, &config.secret)
        .map_err(|source| StartError::Ledger { endpoint: config.ledger.clone(), source })?;
    // Its own token: the relay outlives everything that writes records.
    let relay_cancel = CancellationToken::new();
    let relay = Relay::start(
        log,
        transport,
        RelayOptions::default(),
        RelayMetrics::register(registry.sub_registry_with_prefix("weir_worker")),
        relay_cancel.clone(),
    );

    let device_lost = CancellationToken::new();
    // Asked to stop from outside, or for good cause from inside.
    let cancel = cancel.child_token();
    let versions = Arc::new(Versions::default());
    let service = WorkerService {
        worker,
        instance,
        versions: versions.clone(),
        sessions: Arc::new(Sessions::default()),
        executions: executions.clone(),
        salt: CacheSalt::new(&config.secret),
        grammars: GrammarCompiler::new(),
        tasks: TaskTracker::new(),
        draining: cancel.clone(),
    };
    let client = config_client(&config, worker, instance, rpc_addr);
    let loader = Arc::new(loader(&config, device, Metrics::new(registry), device_lost.clone()));
    let followers = TaskTracker::new();
    let (pool, snapshots) = (config.pool.clone(), client.snapshots());
    followers.spawn(reconcile::run(pool, loader, versions.clone(), snapshots, cancel.clone()));
    followers.spawn(client.run(cancel.clone()));
    let server_cancel = CancellationToken::new();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, service.clone(), config.secret.clone(), server_cancel.clone()));
    let stages = Stages { service, followers, server, server_cancel };

    let mut lifetime = JoinSet::new();
    lifetime.spawn(stages.live(cancel, device_lost.clone(), config.drain_timeout, (relay, relay_cancel)));
    tracing::info!(%worker, %instance, %rpc_addr, "worker started");
    Ok(Running { rpc_addr, versions, executions, device_lost, lifetime })
}

fn config_client(
    config: &Config,
    worker: WorkerId,
    instance: InstanceId,
    rpc_addr: SocketAddr,
) -> ConfigClient {
    ConfigClient::new(ConfigClientOptions {
        control_plane: config.control_plane.clone(),
        secret: config.secret.clone(),
        snapshot_path: config.data_dir.join("config_snapshot.json"),
        identity: NodeIdentity {
            node_id: worker.to_string(),
            kind: NodeKind::Worker,
            instance: instance.to_string(),
            address: config.advertise.clone().unwrap_or_else(|| format!("http://{rpc_addr}")),
            pool: config.pool.clone(),
        },
        // Weights are checked at load, where a failure is a version's state.
        validate: Arc::new(|_, _| Ok(())),
    })
}

fn loader(config: &Config, device: Device, metrics: Metrics, device_lost: CancellationToken) -> Loader {
    let or_default = |configured, default| if configured == 0 { default } else { configured };
    let seats_of_step = config.step_tokens.saturating_sub(PREFILL_TOKENS_MIN);
    let default_seats = device.default_max_seats();
    let default_seats =
        if config.step_tokens == 0 { default_seats } else { default_seats.min(seats_of_step) };
    let max_seats = or_default(config.max_seats, default_seats);
    Loader {
        artifacts: ArtifactStore::new(&config.data_dir),
        device,
        cuda: config.cuda,
        sim: config.sim,
        threads: config.threads,
        kv_memory: config.kv_memory,
        max_seats,
        step_tokens: or_default(
            config.step_tokens,
            device.default_step_tokens().max(max_seats + PREFILL_TOKENS_MIN),
        ),
        metrics,
        device_lost,
    }
}

async fn serve(
    listener: TcpListener,
    service: WorkerService,
    secret: InternalSecret,
    stop: CancellationToken,
) {
    let rpc = WorkerServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX);
    // A step's message must not wait until the one before it is acknowledged.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(SESSION_LOSS_INTERVAL - KEEP_ALIVE))
        .add_service(InterceptedService::new(rpc, secret.require()))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(error = &error as &dyn std::error::Error, "the RPC listener failed");
    }
}

/// The running tasks, in the order in which they end.
struct Stages {
    service: WorkerService,
    /// Config client and reconciler: end with the stop signal.
    followers: TaskTracker,
    server: JoinSet<()>,
    server_cancel: CancellationToken,
}

impl Stages {
    /// From the stop signal, or the loss of the device, to the end.
    async fn live(
        self,
        cancel: CancellationToken,
        lost: CancellationToken,
        drain_timeout: Duration,
        (relay, relay_cancel): (Relay, CancellationToken),
    ) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = lost.cancelled() => cancel.cancel(),
        }
        let drained = self.drain(drain_timeout, &lost);
        // A device that hangs may hold a load up, too.
        let patience = async { lost.cancelled().then(|()| tokio::time::sleep(LOST_TIMEOUT)).await };
        tokio::select! {
            () = drained => {}
            () = patience => tracing::warn!("ending without waiting for what still uses the lost device"),
        }
        if let Err(error) = relay.flush(tokio::time::Instant::now() + FLUSH_TIMEOUT).await {
            tracing::warn!(%error, "stopping without the ledger's confirmation");
        }
        relay_cancel.cancel();
        relay.stopped().await;
    }

    /// New requests are refused already. What runs may finish until the deadline, then it is cancelled; at once if the device
    /// is lost, because nobody can tell how long what runs on another one may go on.
    async fn drain(self, timeout: Duration, device_lost: &CancellationToken) {
        let Self { service, followers, mut server, server_cancel } = self;
        let deadline = Instant::now() + timeout;
        while service.versions.attempts() > 0 && Instant::now() < deadline && !device_lost.is_cancelled() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        let left = service.versions.attempts();
        if left > 0 {
            tracing::warn!(left, "the drain's time is over; cancelling what still runs");
        }
        followers.close();
        followers.wait().await;
        service.sessions.close_all();
        server_cancel.cancel();
        service.tasks.close();
        service.tasks.wait().await;
        service.versions.shut_down().await;
        // Watch streams have no end of their own; the listener is not waited for.
        server.shutdown().await;
    }
}
