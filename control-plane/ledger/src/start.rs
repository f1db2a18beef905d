//! From a checked configuration to a ledger that takes records, and to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use weir_schemas::clock::Clock;
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::ledger::ledger_server::LedgerServer;
use weir_schemas::rpc::listen::bind;

use crate::batch::Intake;
use crate::config::Config;
use crate::consumer::Consumer;
use crate::dead_letter_relay::relay;
use crate::metrics::Metrics;
use crate::orphans;
use crate::pricing::price_unpriced;
use crate::rpc::{LedgerService, Obstacle};
use crate::store;

/// Relays send at most 1 MiB of payload in a batch.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// A sender has one batch under way; a few more cover a reconnect.
const MAX_CALLS_PER_CONNECTION: usize = 8;
/// A sender that vanished without a word is noticed within this and half as much again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// First and longest wait between tries to prepare the database.
const PREPARE_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// How long batches under way may take to commit when the process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What only `main` can make.
#[derive(Debug, Clone)]
pub struct Deps {
    /// The wall clock.
    pub clock: Clock,
}

/// Why the ledger did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The settings for Kafka are unusable.
    #[error("no Kafka client can be made of ledger.kafka")]
    Kafka(#[source] rdkafka::error::KafkaError),
}

/// Answers whether the ledger can take records, and if not, why.
pub type ReadyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A ledger that serves.
#[derive(Debug)]
pub struct Running {
    /// Where its RPC listens.
    pub rpc_addr: SocketAddr,
    service: LedgerService,
    kafka_obstacle: Arc<Obstacle>,
    price_now: Arc<Notify>,
    tasks: JoinSet<()>,
}

impl Running {
    /// Resolves after the stop signal, when batches under way are committed or given up.
    pub async fn stopped(mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a task of the ledger ended abnormally"
                );
            }
        }
        self.service.intake.pool.close().await;
    }

    /// Ready means: the schema is up to date, Postgres answered last, and so did Kafka where it is configured.
    pub fn ready_probe(&self) -> ReadyProbe {
        let obstacles = [Arc::clone(&self.service.obstacle), Arc::clone(&self.kafka_obstacle)];
        Arc::new(move || match obstacles.iter().find_map(|obstacle| obstacle.borrow().clone()) {
            Some(reason) => Err(reason),
            None => Ok(()),
        })
    }

    /// Starts a pricing pass now, because a price was set.
    pub fn price_now(&self) {
        self.price_now.notify_one();
    }
}

/// Binds and serves; waits for Postgres in the background, answering Unavailable meanwhile.
pub async fn start(
    config: Config,
    deps: Deps,
    registry: &mut Registry,
    cancel: CancellationToken,
) -> Result<Running, StartError> {
    let Config {
        listen,
        port_fallback,
        database,
        secret,
        max_connections,
        pricing_interval,
        orphan_grace,
        kafka,
    } = config;
    let (listener, rpc_addr) = bind(listen, port_fallback, |_| Ok(()))
        .map_err(|source| StartError::Listen { address: listen, source })?;
    let (migrated, is_migrated) = watch::channel(false);
    // The others: the pricing pass, and with Kafka positions and copies of dead letters, which take turns.
    let reserved = if kafka.is_some() { 2 } else { 1 };
    let batches = usize::try_from(max_connections.saturating_sub(reserved).max(1)).unwrap_or(1);
    let service = LedgerService {
        intake: Intake {
            pool: store::connect(database, max_connections),
            clock: deps.clock,
            metrics: Metrics::register(registry),
        },
        turns: Arc::new(Semaphore::new(batches)),
        obstacle: Arc::new(watch::Sender::new(Some("waiting for the database".to_owned()))),
        migrated: is_migrated,
    };
    let has_kafka = kafka.is_some();
    let kafka_obstacle = Arc::new(watch::Sender::new(None));
    let price_now = Arc::new(Notify::new());
    let mut tasks = JoinSet::new();
    if let Some(kafka) = kafka {
        kafka_obstacle.send_replace(Some("waiting for Kafka".to_owned()));
        let relaying = relay(kafka.clone(), service.intake.pool.clone(), service.migrated.clone());
        let stop = cancel.clone();
        tasks.spawn(async move {
            stop.run_until_cancelled(relaying).await;
        });
        let consumer =
            Consumer::new(kafka, service.clone(), Arc::clone(&kafka_obstacle)).map_err(StartError::Kafka)?;
        tasks.spawn(consumer.run(cancel.clone()));
    }
    tasks.spawn(serve(listener, service.clone(), secret, cancel.clone()));
    let orphans = orphans::tend(service.intake.clone(), service.migrated.clone(), orphan_grace, has_kafka);
    let stop = cancel.clone();
    tasks.spawn(async move {
        stop.run_until_cancelled(orphans).await;
    });
    let tending = tend(service.clone(), migrated, Arc::clone(&price_now), pricing_interval);
    tasks.spawn(async move {
        cancel.run_until_cancelled(tending).await;
    });
    tracing::info!(%rpc_addr, "ledger started");
    Ok(Running { rpc_addr, service, kafka_obstacle, price_now, tasks })
}

async fn serve(
    listener: TcpListener,
    service: LedgerService,
    secret: InternalSecret,
    cancel: CancellationToken,
) {
    let rpc = LedgerServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let stop = cancel.clone();
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE / 2))
        .concurrency_limit_per_connection(MAX_CALLS_PER_CONNECTION)
        .add_service(InterceptedService::new(rpc, secret.require()))
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            stop.cancelled_owned(),
        );
    let overdue = async {
        cancel.cancelled().await;
        tokio::time::sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::error!(error = &error as &dyn std::error::Error, "the ledger's RPC listener failed");
            }
        }
        () = overdue => tracing::warn!("a sender's call did not end in time; its batch is rolled back and sent again"),
    }
}

/// Prepares the database, however long it is away, then prices what waits.
async fn tend(
    service: LedgerService,
    migrated: watch::Sender<bool>,
    price_now: Arc<Notify>,
    pricing_interval: Duration,
) {
    let (mut wait, longest) = PREPARE_WAIT;
    let mut failures = 0u64;
    while let Err(error) = store::migrate(&service.intake.pool).await {
        failures += 1;
        if failures.is_power_of_two() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                failures,
                "the ledger waits for Postgres; senders keep their records"
            );
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
    }
    migrated.send_replace(true);
    service.here();
    loop {
        match price_unpriced(&service.intake.pool, &service.intake.clock).await {
            Ok(priced) => {
                service.here();
                service.intake.metrics.unpriced(priced.waiting);
                if priced.charged > 0 {
                    tracing::info!(
                        charged = priced.charged,
                        "records that had waited for a price are charged"
                    );
                }
            }
            Err(error) => drop(service.away(&error)),
        }
        drop(tokio::time::timeout(pricing_interval, price_now.notified()).await);
    }
}
