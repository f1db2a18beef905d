//! Building the gateway from its parts; [`drain`] is how it stops.

mod books;
mod drain;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use prometheus_client::registry::Registry as MetricsRegistry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_metering::{LogError, Relay, RelayMetrics, RelayOptions, Transport, TransportError};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::ConfigSnapshot;
use weir_schemas::ids::{GatewayId, InstanceId};
use weir_schemas::rpc::config::NodeKind;
use weir_schemas::rpc::config_client::{ConfigClient, ConfigClientOptions, NodeIdentity};
use weir_schemas::rpc::node_id;

use crate::admission::{Admission, Stopwatch};
use crate::background;
use crate::config::Config;
use crate::generation::{GenerationParts, ProgressBoard};
use crate::http::{Edge, HttpServer, ServerLimits};
use crate::idempotency::Idempotency;
use crate::indexed_config::{CurrentConfig, validate};
use crate::metrics::Metrics;
use crate::model_texts::ModelTexts;
use crate::pipeline::Pipeline;
use crate::rejections::Rejections;
use crate::routing::{LinkOptions, Registry};
use crate::tokenise::Tokeniser;
use books::Books;
use drain::Stopper;

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
    /// A thread that read the record log panicked; the panic hook has said where.
    #[error("the record log could not be read")]
    Thread,
    /// The way to the ledger cannot be built.
    #[error("the ledger cannot be reached as configured")]
    Ledger(#[source] TransportError),
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
    let gateway_id = node_id::load_or_create(data_dir, &deps.clock, GatewayId::new).map_err(unusable)?;
    let texts = Arc::new(ModelTexts::new(data_dir).map_err(unusable)?);
    let registry = registry.sub_registry_with_prefix("weir_gateway");
    let metrics = Metrics::register(registry);
    let relay_metrics = RelayMetrics::register(registry);

    let listen = |source| StartError::Listen { address: config.listen, source };
    let limits = ServerLimits {
        max_connections: config.max_connections,
        slow_reader_timeout: config.slow_reader_timeout,
    };
    let (server, http_addr) =
        HttpServer::bind(config.listen, config.port_fallback, limits, metrics.connections.clone())
            .map_err(listen)?;

    let books = Books::open(&config, gateway_id, &deps.clock, &metrics, &cancel).await?;
    let transport = Transport::new(config.kafka.clone(), &config.ledger, &config.secret);
    let transport = transport.map_err(StartError::Ledger)?;
    let relay_cancel = CancellationToken::new();
    let relay = Relay::start(
        books.log.clone(),
        transport,
        RelayOptions::default(),
        relay_metrics,
        relay_cancel.clone(),
    );

    let background = Background::new(&config, &deps, gateway_id, http_addr, texts.clone());
    let rejections = books.rejections.clone();
    background.spawn_writer(rejections.clone(), deps.clock.clone());
    let edge = edge(&config, deps, metrics, &background, texts, books);
    tracing::info!(gateway = %gateway_id, %http_addr, "gateway listening");
    let stopper = Stopper {
        edge: edge.clone(),
        server,
        stop_notice: config.stop_notice,
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
    books: Books,
) -> Arc<Edge> {
    let Books { recorder, rejections, history, answers, .. } = books;
    let (requests, progress) = (TaskTracker::new(), Arc::new(ProgressBoard::default()));
    background.tasks.spawn(progress.clone().keep_noting(background.cancel.clone()));
    background.spawn_queue_watch(metrics.clone());
    let idempotency =
        Arc::new(Idempotency::new(answers, config.idempotency_grace, metrics.clone(), requests.clone()));
    background.tasks.spawn(idempotency.clone().keep_sweeping(background.cancel.clone()));
    let pipeline = Pipeline {
        clock: deps.clock.clone(),
        admission: Arc::new(Admission::new(history, Stopwatch::since(Instant::now()))),
        registry: background.registry.clone(),
        texts,
        tokeniser: Tokeniser::new(std::thread::available_parallelism().map_or(1, usize::from)),
        recorder,
        rejections,
        generation: Arc::new(GenerationParts {
            registry: background.registry.clone(),
            metrics: metrics.clone(),
            progress,
            tasks: requests.clone(),
            runtime: tokio::runtime::Handle::current(),
            request_timeout: config.request_timeout,
        }),
    };
    Arc::new(Edge {
        clock: deps.clock,
        config: background.current.clone(),
        pipeline,
        idempotency,
        metrics,
        metrics_text: deps.metrics_text,
        max_body_bytes: config.max_body_bytes,
        tasks: requests,
        stopping: AtomicBool::new(false),
        refusing: AtomicBool::new(false),
    })
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
            tasks: tasks.clone(),
        };
        let registry = Arc::new(Registry::new(options, cancel.clone()));
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

    fn spawn_queue_watch(&self, metrics: Metrics) {
        let (current, registry) = (self.current.clone(), self.registry.clone());
        self.tasks.spawn(background::watch_queues(current, registry, metrics, self.cancel.clone()));
    }

    fn spawn_writer(&self, rejections: Arc<Rejections>, clock: Clock) {
        self.tasks.spawn(background::write_rejections(rejections, clock, self.cancel.clone()));
    }
}
