//! Copies of dead letters to their topic, for whoever watches it: at least once, and only after the commit. The bytes
//! in Postgres stay what counts.

use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::PgPool;
use tokio::sync::watch;
use weir_schemas::kafka::{ClientLog, Kafka, Origin, Topic};

use crate::store::outbox;
use crate::store::outbox::Posted;

/// How late a copy is sent, at little cost: the outbox is almost always empty.
const INTERVAL: Duration = Duration::from_secs(1);
/// Letters of one pass; each is at most a message long.
const PASS_LETTERS: i64 = 50;
/// Shorter than Postgres lets a transaction idle, as the letters are held meanwhile.
const DELIVERY_TIMEOUT_MS: &str = "5000";

/// Why a pass did not end; the next one begins with the same letters.
#[derive(Debug, thiserror::Error)]
enum RelayError {
    #[error("the ledger's database does not answer")]
    Postgres(#[from] sqlx::Error),
    #[error("Kafka does not take the copy")]
    Kafka(#[from] KafkaError),
}

/// Sends copies until dropped.
pub(crate) async fn relay(kafka: Kafka, pool: PgPool, mut migrated: watch::Receiver<bool>) {
    if migrated.wait_for(|migrated| *migrated).await.is_err() {
        return;
    }
    let (mut producer, mut is_troubled) = (None, false);
    loop {
        match pass(&kafka, &mut producer, &pool).await {
            Ok(sent) => {
                is_troubled = false;
                if sent > 0 {
                    continue;
                }
            }
            Err(error) => {
                // A producer may have failed for good; a new one costs a connection.
                producer = None;
                if !std::mem::replace(&mut is_troubled, true) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "copies of dead letters wait; they are in Postgres"
                    );
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

type Producer = FutureProducer<ClientLog>;

async fn pass(kafka: &Kafka, producer: &mut Option<Producer>, pool: &PgPool) -> Result<usize, RelayError> {
    let mut transaction = pool.begin().await?;
    let letters = outbox::take(&mut transaction, PASS_LETTERS).await?;
    if letters.is_empty() {
        return Ok(0);
    }
    let producer = match producer {
        Some(producer) => producer,
        None => producer.insert(connect(kafka)?),
    };
    for letter in &letters {
        match send(producer, letter, &letter.payload).await {
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge)) => {
                send(producer, letter, &[]).await?;
            }
            outcome => outcome?,
        }
    }
    let sent: Vec<i64> = letters.iter().map(|letter| letter.dead_letter).collect();
    outbox::sent(&mut transaction, &sent).await?;
    transaction.commit().await?;
    Ok(sent.len())
}

fn connect(kafka: &Kafka) -> KafkaResult<Producer> {
    kafka
        .client_config()
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("message.timeout.ms", DELIVERY_TIMEOUT_MS)
        .create_with_context(ClientLog::default())
}

/// The letter as a message: the record's own key and bytes, and what is known of it as headers.
async fn send(producer: &Producer, letter: &Posted, payload: &[u8]) -> KafkaResult<()> {
    let number = letter.dead_letter.to_string();
    let origin = Origin::to_headers(&letter.sender, u64::try_from(letter.sequence).unwrap_or_default());
    let is_whole = if payload.len() == letter.payload.len() { "true" } else { "false" };
    let headers = [
        ("weir-topic", letter.topic.as_str()),
        ("weir-reason", &letter.reason),
        ("weir-detail", &letter.detail),
        ("weir-dead-letter", &number),
        ("weir-payload-whole", is_whole),
    ]
    .into_iter()
    .fold(origin, |headers: OwnedHeaders, (key, value)| headers.insert(Header { key, value: Some(value) }));
    let record =
        FutureRecord::to(Topic::DeadLetters.name()).key(&letter.key).payload(payload).headers(headers);
    producer.send(record, Duration::ZERO).await.map(|_| ()).map_err(|(error, _)| error)
}
