//! `weir.ledger.v1`: the door for senders that have no broker. It refuses what is no batch at all; whatever is one
//! is taken, record by record if need be.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};
use weir_schemas::ids::{GatewayId, WorkerId};
use weir_schemas::rpc::ledger::ledger_server::Ledger;
use weir_schemas::rpc::ledger::{AppendRequest, AppendResponse};

use crate::batch::{AppendError, Batch, Intake};
use crate::incoming::Received;
use crate::store::senders;
use crate::store::senders::Standing;

/// A batch is one transaction; relays send 500.
const MAX_BATCH_RECORDS: usize = 10_000;

/// Why the ledger cannot take records now; `None` when it can.
pub(crate) type Obstacle = watch::Sender<Option<String>>;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct LedgerService {
    pub(crate) intake: Intake,
    /// Batches at once: one for each connection, less the one that the pricing pass uses.
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) obstacle: Arc<Obstacle>,
    /// Set once the schema is up to date.
    pub(crate) migrated: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl Ledger for LedgerService {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let AppendRequest { sender_id, records } = request.into_inner();
        if sender_id.parse::<GatewayId>().is_err() && sender_id.parse::<WorkerId>().is_err() {
            return Err(Status::invalid_argument("sender_id is neither a gateway's nor a worker's id"));
        }
        if records.len() > MAX_BATCH_RECORDS {
            return Err(Status::invalid_argument(format!(
                "more than {MAX_BATCH_RECORDS} records in one batch"
            )));
        }
        if !*self.migrated.borrow() {
            return Err(Status::unavailable("the ledger's database is not ready"));
        }
        let sender: Arc<str> = sender_id.into();
        let records: Option<Vec<Received>> =
            records.into_iter().map(|record| Received::read(&sender, record)).collect();
        let records = records
            .ok_or_else(|| Status::invalid_argument("a sequence number is not one of 1 to 2^63 - 1"))?;
        let _turn =
            self.turns.acquire().await.map_err(|_| Status::unavailable("the ledger is shutting down"))?;
        let standing = self.take(&sender, records).await.map_err(|error| self.away(&error))?;
        self.here();
        let unsigned = |value: i64, what| {
            u64::try_from(value).map_err(|_| Status::internal(format!("the {what} is negative")))
        };
        Ok(Response::new(AppendResponse {
            watermark: unsigned(standing.watermark, "watermark")?,
            generation: unsigned(standing.generation, "generation")?,
        }))
    }
}

impl LedgerService {
    async fn take(&self, sender: &str, records: Vec<Received>) -> Result<Standing, AppendError> {
        if !records.is_empty() {
            self.intake.append(Batch { records, ..Batch::default() }).await?;
        }
        Ok(senders::standing(&mut *self.intake.pool.acquire().await?, sender).await?)
    }

    /// Postgres failed: said once, until it answers again.
    pub(crate) fn away(&self, error: &(dyn std::error::Error + 'static)) -> Status {
        self.intake.metrics.postgres_up(false);
        let reason = "the ledger's database does not answer";
        let changed = self.obstacle.send_if_modified(|obstacle| obstacle.replace(reason.into()).is_none());
        if changed {
            tracing::error!(error, "Postgres is away; senders keep their records");
        }
        Status::unavailable(reason)
    }

    /// Postgres answered.
    pub(crate) fn here(&self) {
        self.intake.metrics.postgres_up(true);
        if self.obstacle.send_if_modified(|obstacle| obstacle.take().is_some()) {
            tracing::info!("Postgres answers; records are taken");
        }
    }
}
