//! The worker's RPC: who may call it, and the three operations, one file each.

mod generate;
mod grammar;
mod model_text;
mod session;
mod watch;

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use weir_schemas::ids::{InstanceId, WorkerId};
use weir_schemas::rpc::worker::worker_server::Worker;
use weir_schemas::rpc::worker::{
    LoadReport, ModelTextChunk, ModelTextRequest, SessionRequest, StepMessage, WatchRequest,
};

use crate::cache_salt::CacheSalt;
use crate::execution::ExecutionLog;
use crate::session::Sessions;
use crate::versions::Versions;
pub(crate) use grammar::GrammarCompiler;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the operations share.
#[derive(Clone)]
pub(crate) struct WorkerService {
    pub(crate) worker: WorkerId,
    pub(crate) instance: InstanceId,
    pub(crate) versions: Arc<Versions>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) executions: ExecutionLog,
    pub(crate) salt: CacheSalt,
    pub(crate) grammars: GrammarCompiler,
    /// Sessions run here; awaited at the end.
    pub(crate) tasks: TaskTracker,
    /// Set while no new request is taken.
    pub(crate) draining: CancellationToken,
}

#[tonic::async_trait]
impl Worker for WorkerService {
    type SessionStream = Replies<StepMessage>;
    type WatchStream = Replies<LoadReport>;
    type GetModelTextStream = Replies<ModelTextChunk>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Ok(Response::new(session::start(self.clone(), request.into_inner())))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(watch::start(self.clone(), request.into_inner().gateway_id)))
    }

    async fn get_model_text(
        &self,
        request: Request<ModelTextRequest>,
    ) -> Result<Response<Self::GetModelTextStream>, Status> {
        Ok(Response::new(model_text::start(&self.versions, &request.into_inner().version_id)?))
    }
}
