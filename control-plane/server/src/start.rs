//! From a checked configuration to a control plane that serves, and to its end: not ready first, then requests in
//! progress, then everything else.

mod prepare;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use weir_schemas::clock::Clock;
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::config::config_server::ConfigServer;
use weir_schemas::rpc::listen;

use crate::auth::Signer;
use crate::bootstrap::BootstrapError;
use crate::config::Config;
use crate::event_relay::relay;
use crate::http::middleware::REQUESTS_IN_PROGRESS_MAX;
use crate::http::{self, App};
use crate::metrics::Metrics;
use crate::publisher::{Board, ConfigService, Published, follow};
use crate::store::Store;
use prepare::{Outcome, Preparation};

/// A node's messages are a hello or one answer.
const NODE_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// A node that vanished without a word is noticed within this and half as much again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long requests in progress may take to end when the process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// And for their connections to close after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether the last request has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// What only `main` can make.
#[derive(Clone)]
pub struct Deps {
    /// The wall clock.
    pub clock: Clock,
    /// What `GET /metrics` answers: the process' whole registry.
    pub metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deps").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// Why the control plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The database, the signing keys or the first admin key could not be prepared.
    #[error("the control plane's state cannot be prepared")]
    Prepare(#[source] BootstrapError),
}

/// A control plane that serves.
pub struct Running {
    /// Where the HTTP API listens.
    pub http_addr: SocketAddr,
    /// Where the config stream listens.
    pub rpc_addr: SocketAddr,
    preparing: Option<oneshot::Receiver<Outcome>>,
    store: Store,
    tasks: JoinSet<()>,
    streams: TaskTracker,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("http_addr", &self.http_addr)
            .field("rpc_addr", &self.rpc_addr)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Waits until the database is there and everything can be served, however long that takes, and gives the first
    /// operator's token, at an installation's first start only. It is stored nowhere: show it once. A stop ends the
    /// wait with nothing.
    pub async fn prepared(&mut self) -> Result<Option<String>, StartError> {
        let Some(preparing) = &mut self.preparing else { return Ok(None) };
        let outcome = preparing.await;
        self.preparing = None;
        outcome.unwrap_or(Ok(None)).map_err(StartError::Prepare)
    }

    /// Resolves after the stop signal, when requests in progress have ended or were given up.
    pub async fn stopped(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "a task of the control plane ended abnormally");
            }
        }
        self.streams.close();
        self.streams.wait().await;
        self.store.close().await;
    }
}

/// Binds and serves; prepares the database beside, see [`Running::prepared`].
pub async fn start(
    config: Config,
    deps: Deps,
    registry: &mut Registry,
    cancel: CancellationToken,
) -> Result<Running, StartError> {
    let Config { http_listen, rpc_listen, port_fallback, data_dir, database, secret, identity, kafka } =
        config;
    let (http_listener, http_addr) = bind(http_listen, port_fallback)?;
    let (rpc_listener, rpc_addr) = bind(rpc_listen, port_fallback)?;
    let metrics = Metrics::register(registry);
    let store = Store::new(database, metrics.event_lock_hold_seconds.clone());
    let signer = Signer::open(&data_dir, identity.clone())
        .map_err(|error| StartError::Prepare(BootstrapError::Signer(error)))?;
    let (prepared, is_prepared) = watch::channel(false);
    let (outcome, preparing) = oneshot::channel();
    let preparation = Preparation {
        store: store.clone(),
        signer: signer.clone(),
        clock: deps.clock.clone(),
        prepared,
        outcome,
    };
    let (publish, published) = watch::channel(Arc::new(Published::default()));
    let board = Board::new(metrics.clone());
    let streams = TaskTracker::new();
    let mut tasks = JoinSet::new();
    let following = follow(store.clone(), identity, deps.clock.clone(), metrics.clone(), publish);
    let relaying = kafka.map(|kafka| relay(kafka, store.clone(), deps.clock.clone(), metrics.clone()));
    let (pulse, stop) = (store.keep_pulse(), cancel.clone());
    tasks.spawn(async move {
        stop.run_until_cancelled(pulse).await;
    });
    let stop = cancel.clone();
    tasks.spawn(async move {
        if preparation.run(stop.clone()).await {
            let relaying = async {
                if let Some(relaying) = relaying {
                    relaying.await;
                }
            };
            stop.run_until_cancelled(async { tokio::join!(following, relaying) }).await;
        }
    });
    let service = ConfigService {
        store: store.clone(),
        board: board.clone(),
        clock: deps.clock.clone(),
        published: published.clone(),
        prepared: is_prepared.clone(),
        tasks: streams.clone(),
        cancel: cancel.clone(),
    };
    tasks.spawn(serve_rpc(rpc_listener, service, secret, cancel.clone()));
    let app = App {
        store: store.clone(),
        signer,
        board,
        published,
        prepared: is_prepared,
        stopping: cancel.clone(),
        clock: deps.clock,
        metrics,
        metrics_text: deps.metrics_text,
        in_progress: Arc::new(Semaphore::new(REQUESTS_IN_PROGRESS_MAX)),
    };
    tasks.spawn(serve_http(http_listener, app, cancel));
    tracing::info!(%http_addr, %rpc_addr, "control plane started");
    Ok(Running { http_addr, rpc_addr, preparing: Some(preparing), store, tasks, streams })
}

fn bind(address: SocketAddr, port_fallback: bool) -> Result<(TcpListener, SocketAddr), StartError> {
    listen::bind(address, port_fallback, |_| Ok(())).map_err(|source| StartError::Listen { address, source })
}

/// Serves until cancelled and then at most [`STOP_TIMEOUT`] longer. Until the requests in progress have ended the
/// listener stays open, for `/readyz` to say that this process stops.
async fn serve_http(listener: TcpListener, app: App, cancel: CancellationToken) {
    let closing = CancellationToken::new();
    let in_progress = app.in_progress.clone();
    let served =
        axum::serve(listener, http::router(app)).with_graceful_shutdown(closing.clone().cancelled_owned());
    let idle = async {
        while in_progress.available_permits() < REQUESTS_IN_PROGRESS_MAX {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    };
    let drain = async {
        cancel.cancelled().await;
        tracing::info!("control plane stopping");
        drop(tokio::time::timeout(STOP_TIMEOUT, idle).await);
        closing.cancel();
    };
    tokio::join!(until_given_up(served.into_future(), cancel.clone(), "the HTTP API"), drain);
}

async fn serve_rpc(
    listener: TcpListener,
    service: ConfigService,
    secret: InternalSecret,
    cancel: CancellationToken,
) {
    let rpc = ConfigServer::new(service).max_decoding_message_size(NODE_MESSAGE_BYTES_MAX);
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE / 2))
        .add_service(InterceptedService::new(rpc, secret.require()))
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            cancel.clone().cancelled_owned(),
        );
    until_given_up(served, cancel, "the config stream").await;
}

async fn until_given_up<E: std::error::Error + 'static>(
    served: impl Future<Output = Result<(), E>>,
    cancel: CancellationToken,
    what: &'static str,
) {
    let give_up = async {
        cancel.cancelled().await;
        tokio::time::sleep(STOP_TIMEOUT + CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        outcome = served => {
            if let Err(error) = outcome {
                tracing::error!(error = &error as &dyn std::error::Error, "{what} ended");
            }
        }
        () = give_up => tracing::warn!("{what} was stopped with requests in progress"),
    }
    // One listener without the other is no control plane.
    cancel.cancel();
}
