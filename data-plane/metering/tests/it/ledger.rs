//! The other end of the relay as the protocol states it: keeps what it is sent, answers with its watermark, and can
//! be told to fail, to forget and to answer late.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use weir_schemas::records::DAMAGED_TOPIC;
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::ledger::ledger_server::{Ledger, LedgerServer};
use weir_schemas::rpc::ledger::{AppendRequest, AppendResponse};

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) records: BTreeMap<u64, Vec<u8>>,
    pub(crate) batches: Vec<usize>,
    pub(crate) resent: usize,
    /// Calls to refuse before anything is kept.
    pub(crate) refuse: usize,
    /// Calls to keep but answer with an error, as a lost answer.
    pub(crate) lose_answers: usize,
    /// As the protocol has it.
    pub(crate) generation: u64,
}

impl Held {
    pub(crate) fn watermark(&self) -> u64 {
        (1..).take_while(|sequence| self.records.contains_key(sequence)).last().unwrap_or(0)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct TestLedger(pub(crate) Arc<Mutex<Held>>);

#[tonic::async_trait]
impl Ledger for TestLedger {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let AppendRequest { sender_id, records } = request.into_inner();
        assert!(sender_id.starts_with("gtw_"));
        assert!(records.is_sorted_by_key(|record| record.sequence));
        let mut held = self.0.lock().unwrap();
        if held.refuse > 0 {
            held.refuse -= 1;
            return Err(Status::unavailable("not now"));
        }
        held.batches.push(records.len());
        for record in records {
            let topic = record.topic.as_str();
            assert!(
                (topic, record.key.as_str()) == ("weir.usage.v1", "ten_1") || topic == DAMAGED_TOPIC,
                "{record:?}"
            );
            if let Some(before) = held.records.insert(record.sequence, record.payload.clone()) {
                assert_eq!(before, record.payload, "the same number, the same record");
                held.resent += 1;
            }
        }
        if held.lose_answers > 0 {
            held.lose_answers -= 1;
            return Err(Status::unknown("the answer was lost"));
        }
        Ok(Response::new(AppendResponse { watermark: held.watermark(), generation: held.generation }))
    }
}

impl TestLedger {
    /// Serves on `address` until the set is dropped.
    pub(crate) async fn serve(&self, address: SocketAddr) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let require = InternalSecret::new(SECRET).unwrap().require();
        let service = InterceptedService::new(LedgerServer::new(self.clone()), require);
        let mut server = JoinSet::new();
        server.spawn(async move {
            let incoming = TcpIncoming::from(listener);
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        (address, server)
    }
}
