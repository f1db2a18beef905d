//! A worker that follows a script: it speaks the wire exactly, and computes nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};
use weir_schemas::ids::WorkerId;
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker::session_request::Kind;
use weir_schemas::rpc::worker::worker_server::{Worker, WorkerServer};
use weir_schemas::rpc::worker::{
    FinishReason, Finished, Generate, LoadReport, ModelTextChunk, ModelTextRequest, SessionRequest,
    StepMessage, TokenLogprob, VersionLoad, VersionState, WatchRequest,
};

use crate::testing::version;

/// What [`Script::Break`] says came from the cache before it breaks.
pub const CACHED_BEFORE_BREAK: u64 = 4;

/// What the worker does with a request.
#[derive(Debug, Clone)]
pub enum Script {
    /// One token for each text, then the end.
    Answer { texts: Vec<&'static str>, reason: FinishReason, cached: u64 },
    /// One token for each text, then nothing until it is cancelled.
    Hold(Vec<&'static str>),
    /// One token for each text, the others once the gate is open; then the end.
    Gated { before: Vec<&'static str>, gate: CancellationToken, after: Vec<&'static str> },
    /// Nothing, as if part of the prompt were computed; the end when it is cancelled.
    HoldInPrefill { computed: u64 },
    /// Ends at once, without a token.
    Refuse(FinishReason),
    /// Tokens of this text without pause until `max_tokens` or a cancellation.
    Flood(&'static str),
    /// One token for each text, then the session breaks.
    Break(Vec<&'static str>),
}

impl Script {
    pub fn answer(texts: &[&'static str]) -> Self {
        Self::Answer { texts: texts.to_vec(), reason: FinishReason::Stop, cached: 0 }
    }
}

/// What the worker saw and what it is told.
#[derive(Default)]
struct State {
    script: Option<Script>,
    requests: Vec<Generate>,
    cancelled: Vec<u64>,
    /// Not ended yet, over all sessions.
    running: usize,
}

pub struct ScriptedWorker {
    pub id: WorkerId,
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    report: watch::Sender<VersionLoad>,
    broken: CancellationToken,
    _server: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Service {
    id: WorkerId,
    text: Arc<Vec<u8>>,
    state: Arc<Mutex<State>>,
    report: watch::Sender<VersionLoad>,
    broken: CancellationToken,
}

impl ScriptedWorker {
    pub async fn start(id: WorkerId, text: Vec<u8>, secret: InternalSecret) -> Self {
        let (listener, address) = super::listener().await;
        let state: Arc<Mutex<State>> = Arc::default();
        state.lock().script = Some(Script::answer(&["Hel", "lo"]));
        let report = watch::Sender::new(VersionLoad {
            version_id: version().to_string(),
            state: VersionState::Ready.into(),
            max_sequence_tokens: 4096,
            seats: 64,
            pages: 100,
            pages_free: 100,
            device: "sim".into(),
            ..VersionLoad::default()
        });
        let broken = CancellationToken::new();
        let service = Service {
            id,
            text: Arc::new(text),
            state: state.clone(),
            report: report.clone(),
            broken: broken.clone(),
        };
        let server = tokio::task::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(WorkerServer::with_interceptor(service, secret.require()))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self { id, address, state, report, broken, _server: AbortOnDropHandle::new(server) }
    }

    /// From the next request on.
    pub fn script(&self, script: Script) {
        self.state.lock().script = Some(script);
    }

    /// Changes what Watch reports.
    pub fn report(&self, change: impl FnOnce(&mut VersionLoad)) {
        self.report.send_modify(change);
    }

    /// Every stream of this worker ends, and those that are opened later too.
    pub fn break_streams(&self) {
        self.broken.cancel();
    }

    pub fn requests(&self) -> Vec<Generate> {
        self.state.lock().requests.clone()
    }

    pub fn cancelled(&self) -> usize {
        self.state.lock().cancelled.len()
    }

    pub fn running(&self) -> usize {
        self.state.lock().running
    }
}

type Steps = mpsc::Sender<Result<StepMessage, Status>>;

#[tonic::async_trait]
impl Worker for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<StepMessage, Status>> + Send>>;
    type WatchStream = Pin<Box<dyn Stream<Item = Result<LoadReport, Status>> + Send>>;
    type GetModelTextStream = Pin<Box<dyn Stream<Item = Result<ModelTextChunk, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (steps, receiver) = mpsc::channel(16);
        let service = self.clone();
        let task = tokio::task::spawn(service.serve(request.into_inner(), steps));
        let task = AbortOnDropHandle::new(task);
        let broken = self.broken.clone();
        let stream = ReceiverStream::new(receiver)
            .map(move |step| {
                let _owned = &task;
                step
            })
            .take_until(async move { broken.cancelled().await });
        Ok(Response::new(stream.boxed()))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (id, broken) = (self.id, self.broken.clone());
        let reports = WatchStream::new(self.report.subscribe())
            .map(move |load| {
                Ok(LoadReport {
                    worker_id: id.to_string(),
                    instance: "ins".into(),
                    draining: false,
                    last_handle: u64::MAX,
                    versions: vec![load],
                })
            })
            .take_until(async move { broken.cancelled().await });
        Ok(Response::new(reports.boxed()))
    }

    async fn get_model_text(
        &self,
        _: Request<ModelTextRequest>,
    ) -> Result<Response<Self::GetModelTextStream>, Status> {
        let chunks: Vec<_> =
            self.text.chunks(1000).map(|data| Ok(ModelTextChunk { data: data.to_vec() })).collect();
        Ok(Response::new(futures::stream::iter(chunks).boxed()))
    }
}

impl Service {
    async fn serve(self, mut incoming: Streaming<SessionRequest>, steps: Steps) {
        // Whether it waits for ever, too.
        let mut running: HashMap<u64, (CancellationToken, bool)> = HashMap::new();
        let mut tasks = tokio::task::JoinSet::new();
        while let Ok(Some(message)) = incoming.message().await {
            match message.kind {
                Some(Kind::Generate(generate)) => {
                    self.state.lock().requests.push(generate.clone());
                    for handle in (generate.handle..).take(generate.n as usize) {
                        let cancel = CancellationToken::new();
                        let script = {
                            let mut state = self.state.lock();
                            state.running += 1;
                            state.script.clone().unwrap()
                        };
                        let waits = matches!(script, Script::HoldInPrefill { computed: 0 });
                        running.insert(handle, (cancel.clone(), waits));
                        let state = self.state.clone();
                        let generate = Generate { handle, ..generate.clone() };
                        let sequence =
                            Sequence { generate, steps: steps.clone(), cancel, broken: self.broken.clone() };
                        tasks.spawn(async move {
                            sequence.follow(script).await;
                            state.lock().running -= 1;
                        });
                    }
                }
                Some(Kind::Cancel(cancel)) => {
                    if !cancel.only_if_waiting {
                        self.state.lock().cancelled.push(cancel.handle);
                    }
                    if let Some((token, waits)) = running.get(&cancel.handle)
                        && (*waits || !cancel.only_if_waiting)
                    {
                        token.cancel();
                    }
                }
                Some(Kind::Hello(_)) | None => {}
            }
        }
    }
}

struct Sequence {
    generate: Generate,
    steps: Steps,
    cancel: CancellationToken,
    broken: CancellationToken,
}

impl Sequence {
    async fn follow(self, script: Script) {
        let prompt = self.generate.prompt.len() as u64;
        match script {
            Script::Answer { texts, reason, cached } => {
                self.texts(&texts, cached).await;
                self.end(reason, texts.len() as u64, cached, prompt - cached).await;
            }
            Script::Hold(texts) => {
                self.texts(&texts, 0).await;
                self.cancel.cancelled().await;
                self.end(FinishReason::Cancelled, texts.len() as u64, 0, prompt).await;
            }
            Script::Gated { before, gate, after } => {
                self.texts(&before, 0).await;
                let is_open = self.cancel.run_until_cancelled(gate.cancelled()).await.is_some();
                let (reason, after) =
                    if is_open { (FinishReason::Stop, after) } else { (FinishReason::Cancelled, vec![]) };
                for text in &after {
                    self.text(text).await;
                }
                self.end(reason, (before.len() + after.len()) as u64, 0, prompt).await;
            }
            Script::HoldInPrefill { computed } => {
                self.cancel.cancelled().await;
                self.end(FinishReason::Cancelled, 0, 0, computed).await;
            }
            Script::Refuse(reason) => self.end(reason, 0, 0, 0).await,
            Script::Flood(text) => {
                let mut generated = 0;
                while generated < u64::from(self.generate.max_tokens) && !self.cancel.is_cancelled() {
                    self.text(text).await;
                    generated += 1;
                }
                let cancelled = self.cancel.is_cancelled();
                let reason = if cancelled { FinishReason::Cancelled } else { FinishReason::Length };
                self.end(reason, generated, 0, prompt).await;
            }
            Script::Break(texts) => {
                self.texts(&texts, CACHED_BEFORE_BREAK).await;
                // Time for the steps to leave before the stream is cut.
                tokio::time::sleep(Duration::from_millis(50)).await;
                self.broken.cancel();
            }
        }
    }

    async fn texts(&self, texts: &[&str], cached: u64) {
        for (at, text) in texts.iter().enumerate() {
            let cached_prompt_tokens = (at == 0).then_some(cached);
            let logprob = TokenLogprob { token: 65, logprob: -0.5, ..TokenLogprob::default() };
            let asked = self.generate.sampling.as_ref().is_some_and(|sampling| sampling.logprobs.is_some());
            let logprobs = if asked { &[logprob][..] } else { &[] };
            let update = Update { tokens: &[65], text, cached_prompt_tokens, logprobs, ..self.blank() };
            self.update(update).await;
        }
    }

    async fn text(&self, text: &str) {
        self.update(Update { tokens: &[65], text, ..self.blank() }).await;
    }

    async fn end(&self, reason: FinishReason, generated: u64, cached: u64, computed: u64) {
        let finished = Finished {
            reason: reason.into(),
            prompt_tokens: self.generate.prompt.len() as u64,
            cached_prompt_tokens: cached,
            computed_prompt_tokens: computed,
            generated_tokens: generated,
            queue_us: 10,
            prefill_us: 20,
            decode_us: 30,
            ..Finished::default()
        };
        self.update(Update { finished: Some(&finished), ..self.blank() }).await;
    }

    fn blank(&self) -> Update<'static> {
        Update { handle: self.generate.handle, ..Update::default() }
    }

    async fn update(&self, update: Update<'_>) {
        let mut message = StepMessage::default();
        message.push(update);
        // A session that ended has no one to tell.
        drop(self.steps.send(Ok(message)).await);
    }
}
