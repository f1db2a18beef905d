//! Records to Kafka: an idempotent producer that waits for all replicas.
//!
//! Order: each key's records are in Kafka in their sender's order, seen from their first appearance. Within a batch the
//! idempotent producer holds it; the next batch is sent only after the whole one before is acknowledged; and after any
//! failure the producer is given up with all it holds and the whole batch is sent by a new one, so what Kafka gets is
//! always a run of the sequence that begins at or before the first record that it lacks. That is also why messages
//! never expire inside the client: the second of two records could otherwise overtake the first.

use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use weir_schemas::kafka::{ClientLog, Kafka, Origin, Topic, ensure_topics};

use super::ledger::Ledger;
use super::transport::TransportError;
use crate::cursor::LogRecord;

/// A batch takes milliseconds; a change of a partition's leader takes seconds. Past this it begins anew.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bound of what the client holds, far above one batch, the most it is ever given.
const CLIENT_QUEUE_KBYTES: &str = "65536";

/// The producer, while there is one.
#[derive(Debug)]
pub struct KafkaTransport {
    kafka: Kafka,
    pub(super) ledger: Ledger,
    producer: Option<Producer>,
}

impl KafkaTransport {
    pub(super) fn new(kafka: Kafka, ledger: Ledger) -> Self {
        Self { kafka, ledger, producer: None }
    }

    pub(super) async fn deliver(
        &mut self,
        sender_id: &str,
        batch: &[LogRecord],
    ) -> Result<(), TransportError> {
        let producer = match &self.producer {
            Some(producer) => producer,
            None => self.producer.insert(Producer::start(&self.kafka).await?),
        };
        let sent = producer.send(sender_id, batch).await;
        if sent.is_err() {
            self.close().await;
        }
        sent
    }

    pub(super) async fn close(&mut self) {
        if let Some(producer) = self.producer.take()
            // The end of a client waits for its threads.
            && let Err(error) = tokio::task::spawn_blocking(move || drop(producer)).await
        {
            tracing::error!(error = &error as &dyn std::error::Error, "a Kafka producer ended abnormally");
        }
    }
}

struct Producer {
    client: FutureProducer<ClientLog>,
    log: ClientLog,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("log", &self.log).finish_non_exhaustive()
    }
}

impl Producer {
    /// Topics are seen to before each new producer: a cluster that lost everything lacks them, too.
    async fn start(kafka: &Kafka) -> Result<Self, TransportError> {
        ensure_topics(kafka, &Topic::RECORDS).await.map_err(TransportError::Topics)?;
        let log = ClientLog::default();
        let mut config = kafka.client_config();
        config
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            .set("acks", "all")
            // Never by time; see above.
            .set("message.timeout.ms", "0")
            .set("linger.ms", "2")
            .set("compression.type", "lz4")
            // As Java's clients do it, so that other producers and tools find a tenant in the same partition.
            .set("partitioner", "murmur2_random")
            .set("queue.buffering.max.kbytes", CLIENT_QUEUE_KBYTES);
        let client = config.create_with_context(log.clone()).map_err(TransportError::Producer)?;
        Ok(Self { client, log })
    }

    async fn send(&self, sender_id: &str, batch: &[LogRecord]) -> Result<(), TransportError> {
        let mut deliveries = Vec::with_capacity(batch.len());
        for record in batch {
            let mut message: FutureRecord<'_, str, [u8]> = FutureRecord::to(&record.topic)
                .payload(record.payload.as_slice())
                .headers(Origin::to_headers(sender_id, record.sequence));
            if !record.key.is_empty() {
                message = message.key(&record.key);
            }
            let enqueued = self.client.send_result(message);
            deliveries.push(enqueued.map_err(|(error, _)| self.refused(error))?);
        }
        let all = async {
            for delivery in deliveries {
                match delivery.await {
                    Ok(Ok(_)) => {}
                    Ok(Err((error, _))) => return Err(self.refused(error)),
                    Err(_) => return Err(self.refused(KafkaError::Canceled)),
                }
            }
            Ok(())
        };
        match tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, all).await {
            Ok(outcome) => outcome,
            Err(_) => Err(TransportError::NoAcknowledgement {
                seconds: ACKNOWLEDGE_TIMEOUT.as_secs(),
                reason: self.last_error(),
            }),
        }
    }

    fn refused(&self, source: KafkaError) -> TransportError {
        TransportError::Kafka { reason: self.last_error(), source }
    }

    fn last_error(&self) -> String {
        self.log.take_last_error().unwrap_or_else(|| "the client gave no reason".to_owned())
    }
}
