//! Weir's worker RPC, registered with the control plane as every worker is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{IntervalStream, ReceiverStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use weir_schemas::config_snapshot::{ConfigSnapshot, PinnedVersion, digest};
use weir_schemas::ids::{InstanceId, WorkerId};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::config::NodeKind;
use weir_schemas::rpc::config_client::{ConfigClient, ConfigClientOptions, NodeIdentity};
use weir_schemas::rpc::worker::session_request::Kind;
use weir_schemas::rpc::worker::worker_server::{Worker, WorkerServer};
use weir_schemas::rpc::worker::{
    LoadReport, ModelTextChunk, ModelTextRequest, SessionRequest, StepMessage, VersionLoad, VersionState,
    WatchRequest,
};

use super::WAITING_STEPS;
use crate::prompt::MODEL_TEXT;
use crate::schedule::{Listener, Schedule, Sequence, Steps};

/// As often as a worker under load reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
const CHUNK_BYTES: usize = 256 << 10;
const CONTEXT_TOKENS: u32 = 8192;
/// More than any load here wants.
const SEATS: u32 = 4096;
const PAGES: u64 = 1 << 20;
const PREFILL_TOKENS_PER_S: f64 = 1e7;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
struct Service {
    worker: WorkerId,
    instance: InstanceId,
    snapshots: watch::Receiver<Arc<ConfigSnapshot>>,
    schedule: Schedule,
    last_handle: Arc<AtomicU64>,
}

pub(super) async fn serve(
    schedule: Schedule,
    listener: TcpListener,
    secret: InternalSecret,
    config_url: String,
) {
    let folder = tempfile::tempdir().unwrap();
    let (worker, instance) = (WorkerId::from_u128(1), InstanceId::from_u128(1));
    let config = ConfigClient::new(ConfigClientOptions {
        control_plane: config_url,
        secret: secret.clone(),
        snapshot_path: folder.path().join("config_snapshot.json"),
        identity: NodeIdentity {
            node_id: worker.to_string(),
            kind: NodeKind::Worker,
            instance: instance.to_string(),
            address: format!("http://{}", listener.local_addr().unwrap()),
            pool: "default".into(),
        },
        validate: Arc::new(|_, _| Ok(())),
    });
    let service =
        Service { worker, instance, snapshots: config.snapshots(), schedule, last_handle: Arc::default() };
    let server = tonic::transport::Server::builder()
        .add_service(WorkerServer::with_interceptor(service, secret.require()))
        .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
    let (served, ()) = tokio::join!(server, config.run(CancellationToken::new()));
    served.unwrap();
}

#[tonic::async_trait]
impl Worker for Service {
    type SessionStream = Replies<StepMessage>;
    type WatchStream = Replies<LoadReport>;
    type GetModelTextStream = Replies<ModelTextChunk>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (steps, receiver) = mpsc::channel(WAITING_STEPS);
        let reader =
            AbortOnDropHandle::new(tokio::task::spawn(self.clone().read(request.into_inner(), steps)));
        let messages = ReceiverStream::new(receiver).inspect(move |_| {
            let _owned = &reader;
        });
        Ok(Response::new(messages.boxed()))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let service = self.clone();
        let reports = IntervalStream::new(tokio::time::interval(REPORT_INTERVAL));
        Ok(Response::new(reports.map(move |_| Ok(service.report())).boxed()))
    }

    async fn get_model_text(
        &self,
        _: Request<ModelTextRequest>,
    ) -> Result<Response<Self::GetModelTextStream>, Status> {
        let chunks = MODEL_TEXT.chunks(CHUNK_BYTES).map(|data| Ok(ModelTextChunk { data: data.to_vec() }));
        Ok(Response::new(futures::stream::iter(chunks).boxed()))
    }
}

impl Service {
    async fn read(self, mut incoming: Streaming<SessionRequest>, steps: Steps) {
        while let Ok(Some(message)) = incoming.message().await {
            // No client here goes away before its answer ends: what is cancelled may run to its end.
            let Some(Kind::Generate(generate)) = message.kind else { continue };
            self.last_handle.store(generate.handle, Ordering::Relaxed);
            let (handle, prompt_tokens) = (generate.handle, generate.prompt.len() as u64);
            let listener = Listener::Session { handle, prompt_tokens, steps: steps.clone() };
            self.schedule.start(Sequence { num_tokens: generate.max_tokens, listener });
        }
    }

    fn report(&self) -> LoadReport {
        let last_handle = self.last_handle.load(Ordering::Relaxed);
        let versions = self.snapshots.borrow().resources.versions.clone();
        let load = |version: &PinnedVersion| VersionLoad {
            version_id: version.id.to_string(),
            state: VersionState::Ready.into(),
            text_digest: digest(MODEL_TEXT),
            context_limit: CONTEXT_TOKENS,
            max_sequence_tokens: CONTEXT_TOKENS.into(),
            running: u32::try_from(self.schedule.running()).unwrap_or(u32::MAX),
            seats: SEATS,
            pages: PAGES,
            pages_free: PAGES,
            prefill_tokens_per_s: PREFILL_TOKENS_PER_S,
            device: "sim".into(),
            ..VersionLoad::default()
        };
        LoadReport {
            worker_id: self.worker.to_string(),
            instance: self.instance.to_string(),
            draining: false,
            last_handle,
            versions: versions.iter().map(load).collect(),
        }
    }
}
