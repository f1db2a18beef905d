//! How a batch leaves this process. One variant per transport; the relay knows none of them.

use rdkafka::error::KafkaError;
use tonic::Status;
use weir_schemas::kafka::{Kafka, TopicError};
use weir_schemas::rpc::auth::InternalSecret;

use super::kafka::KafkaTransport;
use super::ledger::Ledger;
use super::rewinds::Standing;
use crate::cursor::LogRecord;

/// Where records go.
#[derive(Debug)]
pub enum Transport {
    /// Straight to the ledger by RPC, where no broker is configured.
    Ledger(Ledger),
    /// To Kafka, where the ledger and others read them.
    Kafka(KafkaTransport),
}

/// Why a batch was not acknowledged; it is sent again.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address is not one.
    #[error("the ledger's address '{address}' is not a URI")]
    Address {
        /// As configured.
        address: String,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// The ledger refused or could not be reached.
    #[error("the ledger did not take the batch: {}", .0.message())]
    Ledger(#[source] Box<Status>),
    /// The topics are not there, or nobody answers.
    #[error("Kafka's topics are not ready")]
    Topics(#[source] TopicError),
    /// The client library does not take the settings.
    #[error("no Kafka producer can be made of these settings")]
    Producer(#[source] KafkaError),
    /// Kafka refused a record.
    #[error("Kafka did not take the batch: {reason}")]
    Kafka {
        /// What the client said last.
        reason: String,
        /// The cause.
        #[source]
        source: KafkaError,
    },
    /// Kafka is away, or too slow to be told from that.
    #[error("Kafka has not acknowledged the batch within {seconds} s: {reason}")]
    NoAcknowledgement {
        /// How long it was given.
        seconds: u64,
        /// What the client said last.
        reason: String,
    },
}

impl Transport {
    /// Records to Kafka where there is one, otherwise straight to the ledger at `http://host:port`, which is asked for
    /// its watermark in either case. Nothing is connected to yet. Call within a tokio runtime.
    pub fn new(kafka: Option<Kafka>, ledger: &str, secret: &InternalSecret) -> Result<Self, TransportError> {
        let ledger = Ledger::new(ledger, secret)?;
        Ok(match kafka {
            Some(kafka) => Self::Kafka(KafkaTransport::new(kafka, ledger)),
            None => Self::Ledger(ledger),
        })
    }

    /// Sends a batch, ascending by sequence, and returns once it is acknowledged as a whole. After an error any part of
    /// it may have arrived. The answer says how far the ledger is, where it is the ledger that answers.
    pub(super) async fn deliver(
        &mut self,
        sender_id: &str,
        batch: &[LogRecord],
    ) -> Result<Option<Standing>, TransportError> {
        match self {
            Self::Ledger(ledger) => ledger.append(sender_id, batch).await.map(Some),
            Self::Kafka(kafka) => kafka.deliver(sender_id, batch).await.map(|()| None),
        }
    }

    /// The ledger, where it has to be asked how far it is.
    pub(super) fn ledger_to_ask(&self) -> Option<Ledger> {
        match self {
            Self::Ledger(_) => None,
            Self::Kafka(kafka) => Some(kafka.ledger.clone()),
        }
    }

    /// Gives up what it holds; a later batch would begin anew.
    pub(super) async fn close(&mut self) {
        match self {
            Self::Ledger(_) => {}
            Self::Kafka(kafka) => kafka.close().await,
        }
    }
}
