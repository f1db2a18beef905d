//! The event log to its topic, in order: for audit and integrations, and only where a broker is configured.
//!
//! At least once. Each event is sent when the one before it is acknowledged, because a producer that gives up on one
//! message may have sent the next; so the first delivery of each event follows that of the one before, and a reader
//! passes over positions that it has seen. Never: in the way of a write, whose event waits in the log.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use weir_schemas::clock::Clock;
use weir_schemas::kafka::{ClientLog, Kafka, Topic, TopicError, ensure_topics};
use weir_schemas::records::{ControlEventData, ControlEventRecord};

use crate::metrics::Metrics;
use crate::scope::PlatformScope;
use crate::store::event_log::EventRow;
use crate::store::event_relay::{RelayTurn, Relayed};
use crate::store::{Store, StoreError};

/// Header with the event's position, in decimal.
const POSITION_HEADER: &str = "weir-position";
/// CloudEvents `source`.
const SOURCE: &str = "control-plane";
/// How late an event is relayed that another control plane wrote, and how soon a topic made anew is noticed.
const INTERVAL: Duration = Duration::from_secs(2);
/// Events of one turn, at most.
const TURN_EVENTS: i64 = 200;
/// A turn together with one delivery stays below what Postgres lets a transaction idle, which is 10 s.
const TURN_TIME: Duration = Duration::from_secs(3);
const DELIVERY_TIMEOUT_MS: &str = "5000";
/// Of a question about the topic.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a turn was cut short; the next one begins where it stopped.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("Kafka does not take the event")]
    Kafka(#[from] KafkaError),
    #[error("the topic of control events is not ready")]
    Topic(#[from] TopicError),
    #[error("an event cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    #[error("cut short")]
    CutShort,
}

/// Relays until dropped.
pub(crate) async fn relay(kafka: Kafka, store: Store, clock: Clock, metrics: Metrics) {
    let mut committed = store.committed();
    let mut relay = Relay { kafka, store, clock, metrics, producer: None };
    let mut is_troubled = false;
    loop {
        match relay.turn().await {
            Ok(sent) => {
                if std::mem::take(&mut is_troubled) {
                    tracing::info!("control events are relayed again");
                }
                if sent > 0 {
                    continue;
                }
            }
            Err(error) => {
                // A producer may have failed for good; a new one costs a connection.
                relay.producer = None;
                if !std::mem::replace(&mut is_troubled, true) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "control events wait in the log until they can be relayed"
                    );
                }
                tokio::time::sleep(INTERVAL).await;
            }
        }
        tokio::select! {
            // The sender lives in `store`, which lives here: it cannot end.
            _ = committed.changed() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

type Producer = FutureProducer<ClientLog>;

struct Relay {
    kafka: Kafka,
    store: Store,
    clock: Clock,
    metrics: Metrics,
    producer: Option<Producer>,
}

impl Relay {
    /// Relays what there is, if it is this control plane's turn; returns how much it was.
    async fn turn(&mut self) -> Result<usize, RelayError> {
        // Before the turn: nobody else could have it while a broker that is away is waited for.
        let producer = match &self.producer {
            Some(producer) => producer.clone(),
            None => {
                ensure_topics(&self.kafka, &[Topic::Control]).await?;
                self.producer.insert(connect(&self.kafka)?).clone()
            }
        };
        let Some(mut turn) = self.store.relay_turn(PlatformScope::proven()).await? else {
            return Ok(0);
        };
        let mut relayed = turn.relayed;
        if topic_end(&producer).await? <= relayed.topic_offset {
            tracing::warn!("the topic of control events was made anew; it is filled from the start");
            relayed = Relayed::NONE;
        }
        let (sent, outcome) = self.send_all(&producer, &mut turn, &mut relayed).await;
        turn.end(relayed, self.clock.now()).await?;
        self.metrics.event_relay_position.set(relayed.position);
        outcome.map(|()| sent)
    }

    /// Sends event after event, and notes each that was acknowledged.
    async fn send_all(
        &self,
        producer: &Producer,
        turn: &mut RelayTurn,
        relayed: &mut Relayed,
    ) -> (usize, Result<(), RelayError>) {
        let begun = Instant::now();
        let events = match turn.events(relayed.position, TURN_EVENTS).await {
            Ok(events) => events,
            Err(error) => return (0, Err(error.into())),
        };
        let mut sent = 0;
        for event in events {
            if begun.elapsed() > TURN_TIME {
                break;
            }
            let position = event.position;
            match send(producer, event).await {
                Ok(topic_offset) => *relayed = Relayed { position, topic_offset },
                Err(error) => return (sent, Err(error)),
            }
            sent += 1;
        }
        (sent, Ok(()))
    }
}

fn connect(kafka: &Kafka) -> KafkaResult<Producer> {
    kafka
        .client_config()
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // Each event is waited for: nothing would come to be sent with it.
        .set("linger.ms", "0")
        .set("message.timeout.ms", DELIVERY_TIMEOUT_MS)
        .create_with_context(ClientLog::default())
}

/// The offset that the next message gets.
async fn topic_end(producer: &Producer) -> Result<i64, RelayError> {
    let producer = producer.clone();
    let question = move || producer.client().fetch_watermarks(Topic::Control.name(), 0, ANSWER_TIMEOUT);
    let (_, end) = tokio::task::spawn_blocking(question).await.map_err(|_| RelayError::CutShort)??;
    Ok(end)
}

/// Sends one event; returns where it lies in the topic.
async fn send(producer: &Producer, event: EventRow) -> Result<i64, RelayError> {
    let (key, position) = (event.stream.clone(), event.position.to_string());
    let payload = serde_json::to_vec(&record(event)?)?;
    let headers = OwnedHeaders::new().insert(Header { key: POSITION_HEADER, value: Some(&position) });
    let record =
        FutureRecord::to(Topic::Control.name()).partition(0).key(&key).payload(&payload).headers(headers);
    let delivery = producer.send(record, Duration::ZERO).await.map_err(|(error, _)| error)?;
    Ok(delivery.offset)
}

fn record(event: EventRow) -> Result<ControlEventRecord, StoreError> {
    let EventRow { position, stream, version, event_type, data, actor, recorded_at } = event;
    let fields = match data {
        serde_json::Value::Object(fields) => fields,
        serde_json::Value::Null => serde_json::Map::new(),
        _ => return Err(StoreError::Corrupt { what: "event's data" }),
    };
    let unsigned =
        |value: i64| u64::try_from(value).map_err(|_| StoreError::Corrupt { what: "event's place" });
    let data = ControlEventData {
        position: unsigned(position)?,
        stream,
        version: unsigned(version)?,
        event: event_type,
        fields,
        actor,
        recorded_at,
    };
    Ok(ControlEventRecord::new(position.to_string(), SOURCE, recorded_at, data))
}
