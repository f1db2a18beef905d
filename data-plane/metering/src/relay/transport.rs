//! How a batch reaches the ledger. One variant per transport; the relay knows none of them.

use std::time::Duration;

use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use weir_schemas::rpc::auth::{AttachSecret, InternalSecret};
use weir_schemas::rpc::ledger::ledger_client::LedgerClient;
use weir_schemas::rpc::ledger::{AppendRequest, Record};

use crate::cursor::LogRecord;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A batch is one transaction of milliseconds; past this the answer is lost and the batch is sent again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Where records go.
#[derive(Debug)]
pub enum Transport {
    /// Straight to the ledger by RPC, where no broker is configured.
    Ledger(LedgerTransport),
}

/// What an acknowledged batch tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Every sequence of this sender up to and including this one is in the ledger.
    pub watermark: u64,
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
}

/// The RPC straight to the ledger; connects when first used and again whenever needed.
#[derive(Debug)]
pub struct LedgerTransport {
    client: LedgerClient<InterceptedService<Channel, AttachSecret>>,
}

impl Transport {
    /// Records straight to the ledger at `http://host:port`. Call within a tokio runtime.
    pub fn ledger(address: &str, secret: &InternalSecret) -> Result<Self, TransportError> {
        let endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(|source| TransportError::Address { address: address.to_owned(), source })?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(APPEND_TIMEOUT);
        let client = LedgerClient::with_interceptor(endpoint.connect_lazy(), secret.attach());
        Ok(Self::Ledger(LedgerTransport { client }))
    }

    pub(super) async fn deliver(
        &mut self,
        sender_id: &str,
        batch: &[LogRecord],
    ) -> Result<Delivery, TransportError> {
        match self {
            Self::Ledger(ledger) => ledger.append(sender_id, batch).await,
        }
    }
}

impl LedgerTransport {
    async fn append(&mut self, sender_id: &str, batch: &[LogRecord]) -> Result<Delivery, TransportError> {
        let mut records: Vec<Record> = batch.iter().map(to_wire).collect();
        records.sort_unstable_by_key(|record| record.sequence);
        let request = AppendRequest { sender_id: sender_id.to_owned(), records };
        let response =
            self.client.append(request).await.map_err(|status| TransportError::Ledger(Box::new(status)))?;
        Ok(Delivery { watermark: response.into_inner().watermark })
    }
}

fn to_wire(record: &LogRecord) -> Record {
    Record {
        sequence: record.sequence,
        topic: record.topic.clone(),
        key: record.key.clone(),
        payload: record.payload.clone(),
    }
}
