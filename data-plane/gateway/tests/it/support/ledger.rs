//! A ledger that keeps what it gets, and can be told to be away.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};
use weir_schemas::records::{ChargeRecord, REJECTIONS_TOPIC, RejectionRecord, USAGE_TOPIC};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::ledger::ledger_server::{Ledger as LedgerRpc, LedgerServer};
use weir_schemas::rpc::ledger::{AppendRequest, AppendResponse, Record};

pub struct Ledger {
    pub address: SocketAddr,
    records: Arc<Mutex<Vec<Record>>>,
    _server: AbortOnDropHandle<()>,
}

struct Service(Arc<Mutex<Vec<Record>>>);

impl Ledger {
    pub async fn start(secret: InternalSecret) -> Self {
        let (listener, address) = super::listener().await;
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let service = Service(records.clone());
        let server = tokio::task::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(LedgerServer::with_interceptor(service, secret.require()))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self { address, records, _server: AbortOnDropHandle::new(server) }
    }

    pub fn charges(&self) -> Vec<ChargeRecord> {
        self.of_topic(USAGE_TOPIC)
    }

    pub fn rejections(&self) -> Vec<RejectionRecord> {
        self.of_topic(REJECTIONS_TOPIC)
    }

    /// Waits until exactly this many charges are there, and gives them.
    pub async fn wait_charges(&self, number: usize) -> Vec<ChargeRecord> {
        super::eventually(&format!("{number} charges"), || self.charges().len() >= number).await;
        let charges = self.charges();
        assert_eq!(charges.len(), number);
        charges
    }

    /// Waits for a charge like that, and gives the first.
    pub async fn wait_charge(&self, wanted: impl Fn(&ChargeRecord) -> bool) -> ChargeRecord {
        super::eventually("the charge", || self.charges().iter().any(&wanted)).await;
        self.charges().into_iter().find(wanted).unwrap()
    }

    fn of_topic<T: serde::de::DeserializeOwned>(&self, topic: &str) -> Vec<T> {
        let records = self.records.lock();
        let of_topic = records.iter().filter(|record| record.topic == topic);
        of_topic.map(|record| serde_json::from_slice(&record.payload).unwrap()).collect()
    }
}

#[tonic::async_trait]
impl LedgerRpc for Service {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let mut records = self.0.lock();
        for record in request.into_inner().records {
            assert!(records.len() as u64 + 1 >= record.sequence, "sequences are gapless");
            if record.sequence > records.len() as u64 {
                records.push(record);
            }
        }
        Ok(Response::new(AppendResponse { watermark: records.len() as u64, generation: 0 }))
    }
}
