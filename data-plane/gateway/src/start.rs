//! Building the gateway from its parts, and stopping it: not ready first, then no new connections, running requests
//! to their end or the drain timeout, their records closed, the record log handed on.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry as MetricsRegistry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_metering::{
    LogError, LogOptions, RecordLog, Relay, RelayMetrics, RelayOptions, Transport, TransportError, Unclosed,
};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::ConfigSnapshot;
use weir_schemas::ids::{GatewayId, InstanceId};
use weir_schemas::rpc::config::NodeKind;
use weir_schemas::rpc::config_client::{ConfigClient, ConfigClientOptions, NodeIdentity};

use crate::admission::Admission;
use crate::background;
use crate::config::Config;
use crate::generation::GenerationParts;
use crate::http::{Edge, HttpServer, ServerLimits, router};
use crate::indexed_config::{CurrentConfig, validate};
use crate::metrics::Metrics;
use crate::model_texts::ModelTexts;
use crate::node_id;
use crate::pipeline::Pipeline;
use crate::record::Recorder;
use crate::rejections::Rejections;
use crate::routing::{LinkOptions, Registry};
use crate::tokenise::Tokeniser;

/// Cancellations still under way after the last connection is closed: a worker answers within a step, or the
/// cancellation's own timeout (10 s) ends it.
const CANCELLATIONS_TIMEOUT: Duration = Duration::from_secs(12);
/// What the ledger has not confirmed by then is sent at the next start.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// What only `main` makes.
#[derive(Clone)]
pub struct Deps {
    /// The wall clock.
    pub clock: Clock,
    /// The text of `/metrics`: the whole process's registry, which `main` owns.
    pub metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deps").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// Why the gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("the gateway's data directory {path} cannot be used")]
    DataDir {
        /// The directory.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The listener cannot be bound.
    #[error("the gateway cannot listen on {address}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The record log cannot be opened; without it no request may be served.
    #[error("the record log cannot be opened")]
    RecordLog(#[source] LogError),
    /// The way to the ledger cannot be built.
    #[error("the ledger cannot be reached as configured")]
    Ledger(#[source] TransportError),
    /// A thread that opened the record log failed.
    #[error("the gateway could not be started")]
    Thread,
}

/// A gateway that accepts connections.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub http_addr: SocketAddr,
    /// Who it is, stable over restarts.
    pub gateway_id: GatewayId,
    edge: Arc<Edge>,
    /// One task, which owns all others.
    lifetime: JoinSet<()>,
}

/// The gateway ended otherwise than by being asked to.
#[derive(Debug, thiserror::Error)]
#[error("the gateway ended abnormally")]
pub struct Aborted(#[source] tokio::task::JoinError);

impl Running {
    /// Whether a request would be served now; if not, why.
    pub fn ready(&self) -> Result<(), String> {
        self.edge.readiness().map_err(str::to_owned)
    }

    /// The same as something to hand to a probe.
    pub fn ready_probe(&self) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
        let edge = self.edge.clone();
        Arc::new(move || edge.readiness().map_err(str::to_owned))
    }

    /// Waits for the end: after cancellation, when everything is drained and written.
    pub async fn stopped(mut self) -> Result<(), Aborted> {
        self.lifetime.join_next().await.unwrap_or(Ok(())).map_err(Aborted)
    }
}

/// Binds, opens the record log, closes what the last run left open, and serves until `cancel`.
pub async fn start(
    config: Config,
    deps: Deps,
    registry: &mut MetricsRegistry,
    cancel: CancellationToken,
) -> Result<Running, StartError> {
    let data_dir = &config.data_dir;
    let unusable = |source| StartError::DataDir { path: data_dir.display().to_string(), source };
    std::fs::create_dir_all(data_dir).map_err(unusable)?;
    let gateway_id = node_id::load_or_create(data_dir, &deps.clock).map_err(unusable)?;
    let texts = Arc::new(ModelTexts::new(data_dir).map_err(unusable)?);
    let registry = registry.sub_registry_with_prefix("weir_gateway");
    let metrics = Metrics::register(registry);
    let relay_metrics = RelayMetrics::register(registry);

    let listen = |source| StartError::Listen { address: config.listen, source };
    let limits = ServerLimits {
        max_connections: config.max_connections,
        slow_reader_timeout: config.slow_reader_timeout,
    };
    let server = HttpServer::bind(config.listen, config.port_fallback, limits, metrics.connections.clone())
        .map_err(listen)?;
    let http_addr = server.local_addr().map_err(listen)?;

    let (log, unclosed) = open_log(data_dir, gateway_id, config.record_log_max_bytes).await?;
    let recorder = Arc::new(Recorder::new(gateway_id, deps.clock.clone(), log.clone(), metrics.clone()));
    recorder.close_recovered(unclosed);
    let transport = Transport::ledger(&config.ledger, &config.secret).map_err(StartError::Ledger)?;
    let relay_cancel = CancellationToken::new();
    let relay =
        Relay::start(log.clone(), transport, RelayOptions::default(), relay_metrics, relay_cancel.clone());

    let background = Background::new(&config, &deps, gateway_id, http_addr, texts.clone());
    let rejections = Arc::new(Rejections::new(gateway_id, log));
    background.spawn_writer(rejections.clone(), deps.clock.clone());
    let edge = edge(&config, deps, metrics, &background, texts, recorder, rejections.clone());
    tracing::info!(gateway = %gateway_id, %http_addr, "gateway listening");
    let stopper = Stopper {
        edge: edge.clone(),
        server,
        drain_timeout: config.drain_timeout,
        background,
        rejections,
        relay,
        relay_cancel,
    };
    let mut lifetime = JoinSet::new();
    lifetime.spawn(stopper.run(cancel));
    Ok(Running { http_addr, gateway_id, edge, lifetime })
}

/// The parts on a request's path.
fn edge(
    config: &Config,
    deps: Deps,
    metrics: Metrics,
    background: &Background,
    texts: Arc<ModelTexts>,
    recorder: Arc<Recorder>,
    rejections: Arc<Rejections>,
) -> Arc<Edge> {
    let requests = TaskTracker::new();
    let pipeline = Pipeline {
        clock: deps.clock.clone(),
        epoch: Instant::now(),
        admission: Arc::new(Admission::default()),
        registry: background.registry.clone(),
        texts,
        tokeniser: Tokeniser::new(std::thread::available_parallelism().map_or(1, usize::from)),
        recorder,
        rejections,
        generation: Arc::new(GenerationParts {
            registry: background.registry.clone(),
            metrics: metrics.clone(),
            tasks: requests.clone(),
            runtime: tokio::runtime::Handle::current(),
            request_timeout: config.request_timeout,
        }),
    };
    Arc::new(Edge {
        clock: deps.clock,
        config: background.current.clone(),
        pipeline,
        metrics,
        metrics_text: deps.metrics_text,
        max_body_bytes: config.max_body_bytes,
        tasks: requests,
        stopping: AtomicBool::new(false),
    })
}

async fn open_log(
    data_dir: &Path,
    gateway: GatewayId,
    max_bytes: u64,
) -> Result<(Arc<RecordLog>, Vec<Unclosed>), StartError> {
    let directory = data_dir.join("records");
    let options = LogOptions { max_bytes, ..LogOptions::new(gateway.to_string()) };
    let opened = tokio::task::spawn_blocking(move || RecordLog::open(&directory, options)).await;
    opened.map_err(|_| StartError::Thread)?.map_err(StartError::RecordLog)
}

/// The parts that run beside requests, with what stops them.
struct Background {
    current: Arc<CurrentConfig>,
    registry: Arc<Registry>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl Background {
    fn new(
        config: &Config,
        deps: &Deps,
        gateway: GatewayId,
        http_addr: SocketAddr,
        texts: Arc<ModelTexts>,
    ) -> Self {
        let (tasks, cancel) = (TaskTracker::new(), CancellationToken::new());
        let client = ConfigClient::new(ConfigClientOptions {
            control_plane: config.control_plane.clone(),
            secret: config.secret.clone(),
            snapshot_path: config.data_dir.join("config_snapshot.json"),
            identity: NodeIdentity {
                node_id: gateway.to_string(),
                kind: NodeKind::Gateway,
                instance: InstanceId::new(deps.clock.now()).to_string(),
                address: config.advertise.clone().unwrap_or_else(|| format!("http://{http_addr}")),
                pool: String::new(),
            },
            validate: Arc::new(validate),
        });
        let snapshots: watch::Receiver<Arc<ConfigSnapshot>> = client.snapshots();
        let first = snapshots.borrow().clone();
        let current = Arc::new(CurrentConfig::new(gateway, first));
        let options = LinkOptions {
            gateway,
            secret: config.secret.clone(),
            ready_changed: Arc::new(watch::Sender::new(0)),
        };
        let registry = Arc::new(Registry::new(options, tasks.clone(), cancel.clone()));
        tasks.spawn(client.run(cancel.clone()));
        tasks.spawn(background::follow_config(
            snapshots,
            current.clone(),
            registry.clone(),
            texts.clone(),
            cancel.clone(),
        ));
        tasks.spawn(background::warm_texts(current.clone(), registry.clone(), texts, cancel.clone()));
        Self { current, registry, tasks, cancel }
    }

    fn spawn_writer(&self, rejections: Arc<Rejections>, clock: Clock) {
        self.tasks.spawn(background::write_rejections(rejections, clock, self.cancel.clone()));
    }
}

/// Serves, and stops in order.
struct Stopper {
    edge: Arc<Edge>,
    server: HttpServer,
    drain_timeout: Duration,
    background: Background,
    rejections: Arc<Rejections>,
    relay: Relay,
    relay_cancel: CancellationToken,
}

impl Stopper {
    async fn run(self, cancel: CancellationToken) {
        let stop = CancellationToken::new();
        let serving = self.server.serve(router(self.edge.clone()), stop.clone(), self.drain_timeout);
        let mark_stopping = async {
            cancel.cancelled().await;
            self.edge.stopping.store(true, Ordering::Relaxed);
            tracing::info!("gateway stopping");
            stop.cancel();
        };
        tokio::join!(serving, mark_stopping);
        let requests = &self.edge.tasks;
        requests.close();
        if tokio::time::timeout(CANCELLATIONS_TIMEOUT, requests.wait()).await.is_err() {
            tracing::error!(
                number = requests.len(),
                "cancellations are left open; their records are closed at the next start"
            );
        }
        self.background.cancel.cancel();
        self.background.tasks.close();
        self.background.tasks.wait().await;
        self.rejections.flush(self.edge.clock.now(), true);
        if let Err(left) = self.relay.flush(tokio::time::Instant::now() + FLUSH_TIMEOUT).await {
            tracing::warn!(pending = left.pending, "records wait for the ledger until the next start");
        }
        self.relay_cancel.cancel();
        self.relay.stopped().await;
        tracing::info!("gateway stopped");
    }
}
