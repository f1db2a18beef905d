//! The wire to one worker: connect, keep a Session and a Watch stream, hand each update to its sequence's mailbox,
//! reconnect with backoff. When the wire breaks, every sequence on it is lost at once; the worker sees the same break
//! and cancels them on its side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use weir_schemas::ids::{GatewayId, WorkerId};
use weir_schemas::rpc::auth::{AttachSecret, InternalSecret};
use weir_schemas::rpc::step_message::MalformedStep;
use weir_schemas::rpc::worker::session_request::Kind;
use weir_schemas::rpc::worker::worker_client::WorkerClient;
use weir_schemas::rpc::worker::{
    Cancel, Generate, LoadReport, ModelTextRequest, SessionHello, SessionRequest, StepMessage, VersionLoad,
    VersionState, WatchRequest,
};

use super::expected_ttft::{Sent, SentSince};
use super::mailbox::{Delivered, Mailbox};
use super::unreported::Unreported;
use crate::self_wakes::WithoutSelfWakes;

/// First and longest wait between connection attempts.
const RECONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A killed worker's socket says so at once; this notices one whose machine or network is gone, and leaves a busy one
/// time to answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Requests on their way to the worker; far more than a worker's queue takes, so a full one means that it does not
/// read, and the request goes elsewhere.
const OUTGOING_MESSAGES: usize = 4096;
/// A step of a thousand sequences with a kilobyte of text each.
const MAX_STEP_BYTES: usize = 4 << 20;

type Client = WorkerClient<InterceptedService<Channel, AttachSecret>>;

/// What all links of a gateway share.
#[derive(Debug, Clone)]
pub(crate) struct LinkOptions {
    pub(crate) gateway: GatewayId,
    pub(crate) secret: InternalSecret,
    /// Told whenever what is ready where may have changed.
    pub(crate) ready_changed: Arc<watch::Sender<u64>>,
    /// Owns the links and their connections.
    pub(crate) tasks: TaskTracker,
}

/// Why a link broke.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot connect")]
    Connect(#[from] tonic::transport::Error),
    #[error("{}: {}", .0.code(), .0.message())]
    Status(#[from] tonic::Status),
    #[error("another worker answers at this address")]
    OtherWorker,
    #[error("the worker ended its stream")]
    Ended,
    #[error(transparent)]
    Malformed(#[from] MalformedStep),
}

/// Why model text could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("the worker is not connected")]
    NotConnected,
    #[error("{}: {}", .0.code(), .0.message())]
    Status(#[from] tonic::Status),
    #[error("more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// One worker at one address.
#[derive(Debug)]
pub(crate) struct Link {
    worker: WorkerId,
    address: String,
    options: LinkOptions,
    /// Set once the config no longer names this worker here: takes nothing new, ends with its last sequence.
    retired: CancellationToken,
    /// Not reused by the next session, so that what is left of one session names nothing in another.
    next_handle: AtomicU64,
    session: Mutex<Option<Session>>,
}

/// The streams while they stand.
#[derive(Debug)]
struct Session {
    client: Client,
    outgoing: mpsc::Sender<SessionRequest>,
    sequences: HashMap<u64, Arc<Mailbox>>,
    unreported: Unreported,
    report: Option<Arc<LoadReport>>,
}

/// A replica of a version that can take requests.
#[derive(Debug, Clone)]
pub(crate) struct ReadyReplica {
    pub(crate) load: VersionLoad,
    pub(crate) sent: SentSince,
}

impl Link {
    pub(crate) fn new(worker: WorkerId, address: String, options: LinkOptions) -> Self {
        Self {
            worker,
            address,
            options,
            retired: CancellationToken::new(),
            next_handle: AtomicU64::new(1),
            session: Mutex::new(None),
        }
    }

    pub(crate) fn worker(&self) -> WorkerId {
        self.worker
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn retire(&self) {
        self.retired.cancel();
    }

    /// There is a session, and the worker has reported on it.
    pub(crate) fn is_connected(&self) -> bool {
        self.session.lock().as_ref().is_some_and(|session| session.report.is_some())
    }

    /// The version's load if the worker can take requests for it.
    pub(crate) fn ready(&self, version: &str) -> Option<ReadyReplica> {
        let session = self.session.lock();
        let session = session.as_ref()?;
        let report = session.report.as_ref().filter(|report| !report.draining)?;
        let load = report.versions.iter().find(|load| load.version_id == version)?;
        if load.state() != VersionState::Ready || self.retired.is_cancelled() {
            return None;
        }
        Some(ReadyReplica { load: load.clone(), sent: session.unreported.of(version) })
    }

    /// Sends a request with a mailbox for each of its choices; its handle is filled in here, and is that of the first choice.
    /// `None` when there is no session that takes it.
    pub(crate) fn dispatch(&self, mut generate: Generate, mailboxes: &[Arc<Mailbox>]) -> Option<u64> {
        let mut guard = self.session.lock();
        let session = guard.as_mut()?;
        // Handles are ascending on the wire because they are given and sent under this lock.
        let (sequences, prompt_tokens) = (mailboxes.len() as u64, generate.prompt.len() as u64);
        let handle = self.next_handle.fetch_add(sequences, Ordering::Relaxed);
        generate.handle = handle;
        let (version, class) = (generate.version_id.clone(), generate.class());
        session.outgoing.try_send(SessionRequest { kind: Some(Kind::Generate(generate)) }).ok()?;
        session.sequences.extend((handle..).zip(mailboxes.iter().cloned()));
        session.unreported.add(handle, version, class, Sent { sequences, prompt_tokens });
        Some(handle)
    }

    /// Asks the worker to stop a sequence; its last update still comes.
    pub(crate) async fn cancel(&self, handle: u64) {
        self.send_cancel(Cancel { handle, only_if_waiting: false }).await;
    }

    /// Asks the worker to stop a sequence if it has not begun to be computed.
    pub(crate) async fn cancel_if_waiting(&self, handle: u64) {
        self.send_cancel(Cancel { handle, only_if_waiting: true }).await;
    }

    async fn send_cancel(&self, cancel: Cancel) {
        let outgoing = match &*self.session.lock() {
            Some(session) if session.sequences.contains_key(&cancel.handle) => session.outgoing.clone(),
            _ => return,
        };
        // A session that ended has told the mailbox so.
        drop(outgoing.send(SessionRequest { kind: Some(Kind::Cancel(cancel)) }).await);
    }

    /// Stops listening for a sequence whose worker does not answer.
    pub(crate) fn forget(&self, handle: u64) {
        if let Some(session) = &mut *self.session.lock() {
            session.sequences.remove(&handle);
            session.unreported.remove(handle);
        }
    }

    /// Fetches a version's model text, at most `limit` bytes.
    pub(crate) async fn fetch_model_text(
        &self,
        version: String,
        limit: usize,
    ) -> Result<Vec<u8>, FetchError> {
        let client = self.session.lock().as_ref().map(|session| session.client.clone());
        let mut client = client.ok_or(FetchError::NotConnected)?;
        let mut chunks = client.get_model_text(ModelTextRequest { version_id: version }).await?.into_inner();
        let mut text = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            if text.len() + chunk.data.len() > limit {
                return Err(FetchError::TooLarge { limit });
            }
            text.extend_from_slice(&chunk.data);
        }
        Ok(text)
    }

    /// Keeps the streams up until cancelled, or retired and empty.
    pub(crate) async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut wait = RECONNECT_WAIT.0;
        loop {
            let outcome = cancel.run_until_cancelled(self.follow(&mut wait)).await;
            match outcome {
                None | Some(Ok(())) => return,
                Some(Err(error)) => {
                    let cause = &error as &dyn std::error::Error;
                    tracing::warn!(worker = %self.worker, address = self.address, error = cause, "no session with the worker");
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.retired.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(RECONNECT_WAIT.1);
        }
    }

    /// One connection's life; `Ok` when retired and empty.
    async fn follow(&self, wait: &mut Duration) -> Result<(), LinkError> {
        let cut = CancellationToken::new();
        let _cut_at_the_end = cut.clone().drop_guard();
        let channel = Endpoint::from_shared(self.address.clone())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .executor(WithoutSelfWakes { tasks: self.options.tasks.clone(), cut: cut.clone() })
            .connect()
            .await?;
        let mut client = WorkerClient::with_interceptor(channel, self.options.secret.attach())
            .max_decoding_message_size(MAX_STEP_BYTES);
        let gateway_id = self.options.gateway.to_string();
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MESSAGES);
        let hello = SessionHello { gateway_id: gateway_id.clone() };
        drop(outgoing.send(SessionRequest { kind: Some(Kind::Hello(hello)) }).await);
        let mut steps = client.session(ReceiverStream::new(receiver)).await?.into_inner();
        let mut reports = client.watch(WatchRequest { gateway_id }).await?.into_inner();
        let _open = OpenSession::new(self, client, outgoing);
        tracing::info!(worker = %self.worker, address = self.address, "session with the worker");
        let mut retired = std::pin::pin!(self.retired.cancelled());
        loop {
            if self.retired.is_cancelled() && self.is_empty() {
                return Ok(());
            }
            tokio::select! {
                step = steps.message() => self.deliver(&step?.ok_or(LinkError::Ended)?)?,
                report = reports.message() => {
                    self.take_report(report?.ok_or(LinkError::Ended)?)?;
                    *wait = RECONNECT_WAIT.0;
                }
                () = retired.as_mut(), if !self.retired.is_cancelled() => {}
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.session.lock().as_ref().is_none_or(|session| session.sequences.is_empty())
    }

    fn deliver(&self, step: &StepMessage) -> Result<(), MalformedStep> {
        let now = Instant::now();
        let mut guard = self.session.lock();
        let Some(session) = guard.as_mut() else { return Ok(()) };
        for update in step.updates() {
            let update = update?;
            let handle = update.handle;
            // A forgotten sequence's updates have no one to go to.
            let Some(mailbox) = session.sequences.get(&handle) else { continue };
            match mailbox.deliver(update, now) {
                Delivered::More => {}
                Delivered::Last => {
                    session.sequences.remove(&handle);
                    session.unreported.remove(handle);
                }
                // Said again with each update until the worker has heard it; where it cannot be sent now, with the next.
                Delivered::Exhausted => {
                    let cancel = Cancel { handle, only_if_waiting: false };
                    drop(session.outgoing.try_send(SessionRequest { kind: Some(Kind::Cancel(cancel)) }));
                }
            }
        }
        Ok(())
    }

    fn take_report(&self, report: LoadReport) -> Result<(), LinkError> {
        if report.worker_id != self.worker.to_string() {
            return Err(LinkError::OtherWorker);
        }
        let changed = {
            let mut guard = self.session.lock();
            let Some(session) = guard.as_mut() else { return Ok(()) };
            session.unreported.reported(report.last_handle);
            let before = session.report.as_deref().map(states);
            let changed = before.as_ref() != Some(&states(&report));
            session.report = Some(Arc::new(report));
            changed
        };
        if changed {
            self.options.ready_changed.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }
}

/// What decides readiness.
fn states(report: &LoadReport) -> (bool, Vec<(String, i32)>) {
    let states = report.versions.iter().map(|load| (load.version_id.clone(), load.state));
    (report.draining, states.collect())
}

/// Stands for the session being up; its end, however it comes, loses every sequence.
struct OpenSession<'a>(&'a Link);

impl<'a> OpenSession<'a> {
    fn new(link: &'a Link, client: Client, outgoing: mpsc::Sender<SessionRequest>) -> Self {
        *link.session.lock() = Some(Session {
            client,
            outgoing,
            sequences: HashMap::new(),
            unreported: Unreported::default(),
            report: None,
        });
        Self(link)
    }
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        let session = self.0.session.lock().take();
        for mailbox in session.iter().flat_map(|session| session.sequences.values()) {
            mailbox.lose();
        }
        self.0.options.ready_changed.send_modify(|changes| *changes += 1);
    }
}
