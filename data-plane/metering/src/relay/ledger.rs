//! The ledger by RPC: takes records where no broker is configured, and always says how far it is.

use std::time::Duration;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use weir_schemas::rpc::auth::{AttachSecret, InternalSecret};
use weir_schemas::rpc::ledger::ledger_client::LedgerClient;
use weir_schemas::rpc::ledger::{AppendRequest, Record};

use super::rewinds::Standing;
use super::transport::TransportError;
use crate::cursor::LogRecord;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A batch is one transaction of milliseconds; past this the answer is lost and the batch is sent again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects when first used and again whenever needed.
#[derive(Debug, Clone)]
pub struct Ledger {
    client: LedgerClient<InterceptedService<Channel, AttachSecret>>,
}

impl Ledger {
    pub(super) fn new(address: &str, secret: &InternalSecret) -> Result<Self, TransportError> {
        let endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(|source| TransportError::Address { address: address.to_owned(), source })?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(APPEND_TIMEOUT);
        Ok(Self { client: LedgerClient::with_interceptor(endpoint.connect_lazy(), secret.attach()) })
    }

    /// Hands records over, and hears how far the ledger is then. Without records it only asks.
    pub(super) async fn append(
        &mut self,
        sender_id: &str,
        batch: &[LogRecord],
    ) -> Result<Standing, TransportError> {
        let records = batch.iter().map(to_wire).collect();
        let request = AppendRequest { sender_id: sender_id.to_owned(), records };
        let response =
            self.client.append(request).await.map_err(|status| TransportError::Ledger(Box::new(status)))?;
        let answer = response.into_inner();
        Ok(Standing { watermark: answer.watermark, generation: answer.generation })
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
