//! Starts a worker in a folder of its own and speaks to it as a gateway would.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use weir_metering::{LogOptions, RecordLog};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::{ConfigSnapshot, Deployment, Overload, PinnedVersion, Revision, Slo};
use weir_schemas::ids::{DeploymentId, GatewayId, KeyId, RequestId, TenantId, VersionId};
use weir_schemas::records::ExecutionRecord;
use weir_schemas::rpc::auth::{AttachSecret, InternalSecret};
use weir_schemas::rpc::worker::session_request::Kind;
use weir_schemas::rpc::worker::worker_client::WorkerClient;
use weir_schemas::rpc::worker::{
    Billing, Cancel, Class, Finished, Generate, LoadReport, ModelTextRequest, Sampling, SessionHello,
    SessionRequest, StepMessage, TokenLogprob, VersionLoad, VersionState, WatchRequest,
};
use weir_text::{ModelText, TextModel};
use weir_worker::{Config, Deps, Device, RawConfig, Running, StartError, WorkerFailed};

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Shorter than the model's own, so that the KV pool of a test stays small.
pub(crate) const CONTEXT_LIMIT: u32 = 1024;
/// Loads and steps take their time on a busy machine; nothing is measured by this.
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) type Client = WorkerClient<InterceptedService<Channel, AttachSecret>>;

pub(crate) fn model_path() -> PathBuf {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "the model is missing: run `make models`");
    path.canonicalize().unwrap()
}

pub(crate) fn version() -> VersionId {
    VersionId::from_u128(7)
}

pub(crate) fn gateway() -> GatewayId {
    GatewayId::from_u128(1)
}

pub(crate) fn tenant(number: u128) -> TenantId {
    TenantId::from_u128(number)
}

pub(crate) fn pinned() -> PinnedVersion {
    let facts = weir_worker::inspect(&model_path()).unwrap();
    PinnedVersion {
        id: version(),
        model: "smollm2".into(),
        weights_uri: facts.weights_uri,
        digest: facts.digest,
        dtype: facts.dtype,
        parameter_count: facts.parameter_count,
        context_limit: CONTEXT_LIMIT,
        tokenizer_digest: facts.tokenizer_digest,
    }
}

/// A worker, and the folder that it keeps its things in.
pub(crate) struct TestWorker {
    pub(crate) folder: TempDir,
    pub(crate) address: String,
    cancel: CancellationToken,
    running: Running,
}

impl TestWorker {
    /// One that has the version ready.
    pub(crate) async fn ready() -> Self {
        let worker = Self::start(pinned()).await;
        let load = worker.wait_for_state(VersionState::Ready).await;
        assert_eq!(load.context_limit, CONTEXT_LIMIT);
        worker
    }

    pub(crate) async fn start(pinned: PinnedVersion) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), pinned).await
    }

    /// One with other settings, or the reason why it does not start; whether it loads is to be seen.
    pub(crate) async fn with(change: impl FnOnce(&mut RawConfig)) -> Result<Self, StartError> {
        Self::start_with(tempfile::tempdir().unwrap(), pinned(), change).await
    }

    pub(crate) async fn start_in(folder: TempDir, pinned: PinnedVersion) -> Self {
        Self::start_with(folder, pinned, |_| ()).await.unwrap()
    }

    async fn start_with(
        folder: TempDir,
        pinned: PinnedVersion,
        change: impl FnOnce(&mut RawConfig),
    ) -> Result<Self, StartError> {
        store_snapshot(folder.path(), pinned);
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        let mut raw = RawConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            data_dir: folder.path().to_owned(),
            internal_secret_file: folder.path().join("secret"),
            // Nobody listens there.
            control_plane: "http://127.0.0.1:9".into(),
            ledger: "http://127.0.0.1:9".into(),
            kv_memory_bytes: 96 << 20,
            device: Device::Cpu,
            max_seats: 16,
            drain_timeout_ms: 100,
            ..RawConfig::default()
        };
        change(&mut raw);
        let cancel = CancellationToken::new();
        let deps = Deps { clock: Clock::new(|| chrono::DateTime::from_timestamp_millis(1_000_000).unwrap()) };
        let config = Config::try_from(raw).unwrap();
        let running = weir_worker::start(config, deps, &mut Registry::default(), cancel.clone()).await?;
        let address = format!("http://{}", running.rpc_addr);
        Ok(Self { folder, address, cancel, running })
    }

    pub(crate) async fn client(&self) -> Client {
        let channel = Channel::from_shared(self.address.clone()).unwrap().connect().await.unwrap();
        WorkerClient::with_interceptor(channel, InternalSecret::new(SECRET).unwrap().attach())
    }

    pub(crate) async fn session(&self) -> Session {
        Session::open(self.client().await).await
    }

    /// The version's load, once `wanted` of it holds.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&LoadReport, &VersionLoad) -> bool) -> VersionLoad {
        let request = WatchRequest { gateway_id: gateway().to_string() };
        let mut reports = self.client().await.watch(request).await.unwrap().into_inner();
        let search = async {
            loop {
                let report = reports.message().await.unwrap().unwrap();
                if let Some(load) = report.versions.iter().find(|load| wanted(&report, load)) {
                    return load.clone();
                }
            }
        };
        tokio::time::timeout(DEADLINE, search).await.expect("the load never became as wanted")
    }

    pub(crate) async fn wait_for_state(&self, state: VersionState) -> VersionLoad {
        self.wait_for(|_, load| load.state() == state || load.state() == VersionState::Failed).await
    }

    /// Nothing runs or waits, and every page is free or cached.
    pub(crate) async fn wait_until_idle(&self) -> VersionLoad {
        let idle = |load: &VersionLoad| load.running + load.waiting_interactive + load.waiting_batch == 0;
        let load = self.wait_for(|_, load| idle(load) && load.pages_referenced == 0).await;
        assert_eq!(load.pages_free + load.pages_cached, load.pages);
        load
    }

    pub(crate) fn is_ready(&self) -> Result<(), String> {
        (self.running.ready_probe())()
    }

    /// Waits until it ends by itself; the folder remains.
    pub(crate) async fn failed(self) -> (TempDir, WorkerFailed) {
        let stopped = tokio::time::timeout(DEADLINE, self.running.stopped());
        (self.folder, stopped.await.expect("the worker goes on").unwrap_err())
    }

    /// Stops it as SIGTERM would; the folder remains.
    pub(crate) async fn stop(self) -> TempDir {
        self.cancel.cancel();
        self.running.stopped().await.unwrap();
        self.folder
    }
}

/// Every execution record in a stopped worker's log, by request.
pub(crate) fn records(folder: &Path) -> HashMap<RequestId, ExecutionRecord> {
    let sender = std::fs::read_to_string(folder.join("node_id")).unwrap();
    let (log, unclosed) =
        RecordLog::open(&folder.join("record_log"), LogOptions::new(sender.trim())).unwrap();
    assert!(unclosed.is_empty(), "a stopped worker left {} records open", unclosed.len());
    log.sync().unwrap();
    let mut cursor = log.cursor();
    let mut records = HashMap::new();
    loop {
        let batch = cursor.read(1000, 1 << 20).unwrap();
        if batch.is_empty() {
            return records;
        }
        for record in batch {
            let execution: ExecutionRecord = serde_json::from_slice(&record.payload).unwrap();
            assert_eq!(execution.data.sequence, record.sequence);
            assert_eq!(record.key, execution.data.tenant.to_string());
            assert!(
                records.insert(execution.data.request, execution).is_none(),
                "two records of one attempt"
            );
        }
    }
}

fn store_snapshot(folder: &Path, pinned: PinnedVersion) {
    let deployment = Deployment {
        id: DeploymentId::from_u128(1),
        version: pinned.id,
        pool: "default".into(),
        replicas: 1,
        slo: Slo::default(),
        overload: Overload::default(),
    };
    let mut snapshot =
        ConfigSnapshot { revision: Revision { epoch: 1, position: 1 }, ..ConfigSnapshot::default() };
    snapshot.resources.versions = vec![pinned];
    snapshot.resources.deployments = vec![deployment];
    let stored = serde_json::json!({ "digest": snapshot.digest(), "snapshot": snapshot });
    std::fs::write(folder.join("config_snapshot.json"), stored.to_string()).unwrap();
}

/// The model's tokenizer, fetched as a gateway fetches it.
pub(crate) async fn fetch_text(client: &mut Client) -> TextModel {
    let request = ModelTextRequest { version_id: version().to_string() };
    let mut chunks = client.get_model_text(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend(chunk.data);
    }
    let text = ModelText::from_bytes(&bytes).unwrap();
    assert_eq!(text.digest(), pinned().tokenizer_digest);
    TextModel::new(text).unwrap()
}

/// What a request has got so far.
#[derive(Debug, Default, Clone)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) finished: Option<Finished>,
}

/// A gateway's end of a session.
pub(crate) struct Session {
    requests: mpsc::Sender<SessionRequest>,
    messages: Streaming<StepMessage>,
    answers: HashMap<u64, Answer>,
    /// Messages received, so steps that had something for us.
    pub(crate) num_messages: usize,
    next_handle: u64,
}

impl Session {
    pub(crate) async fn open(mut client: Client) -> Self {
        let (requests, receiver) = mpsc::channel(1024);
        let hello = Kind::Hello(SessionHello { gateway_id: gateway().to_string() });
        requests.send(SessionRequest { kind: Some(hello) }).await.unwrap();
        let messages =
            client.session(Request::new(ReceiverStream::new(receiver))).await.unwrap().into_inner();
        Self { requests, messages, answers: HashMap::new(), num_messages: 0, next_handle: 1 }
    }

    /// Sends a request as it stands but for its handle, which is returned.
    pub(crate) async fn send(&mut self, mut generate: Generate) -> u64 {
        generate.handle = self.next_handle;
        self.next_handle += u64::from(generate.n.max(1));
        let handle = generate.handle;
        self.requests.send(SessionRequest { kind: Some(Kind::Generate(generate)) }).await.unwrap();
        handle
    }

    pub(crate) async fn cancel(&mut self, handle: u64) {
        self.cancel_unless(handle, false).await;
    }

    pub(crate) async fn cancel_if_waiting(&mut self, handle: u64) {
        self.cancel_unless(handle, true).await;
    }

    async fn cancel_unless(&mut self, handle: u64, only_if_waiting: bool) {
        let kind = Some(Kind::Cancel(Cancel { handle, only_if_waiting }));
        self.requests.send(SessionRequest { kind }).await.unwrap();
    }

    /// Reads until the request's answer is as wanted.
    pub(crate) async fn read_until(&mut self, handle: u64, wanted: impl Fn(&Answer) -> bool) -> Answer {
        loop {
            if let Some(answer) = self.answers.get(&handle).filter(|answer| wanted(answer)) {
                return answer.clone();
            }
            let message = tokio::time::timeout(DEADLINE, self.messages.message()).await.expect("no message");
            let message = message.unwrap().expect("the session ended");
            self.num_messages += 1;
            for update in message.updates().map(Result::unwrap) {
                let answer = self.answers.entry(update.handle).or_default();
                assert!(answer.finished.is_none(), "an update after the last one");
                answer.tokens.extend(update.tokens);
                answer.text.push_str(update.text);
                answer.logprobs.extend_from_slice(update.logprobs);
                answer.finished = update.finished.cloned();
            }
        }
    }

    pub(crate) async fn finish(&mut self, handle: u64) -> (Answer, Finished) {
        let answer = self.read_until(handle, |answer| answer.finished.is_some()).await;
        let finished = answer.finished.clone().unwrap();
        assert_eq!(answer.tokens.len() as u64, finished.generated_tokens);
        (answer, finished)
    }

    /// Reads until the worker ends the session.
    pub(crate) async fn broken(&mut self) -> Status {
        loop {
            match tokio::time::timeout(DEADLINE, self.messages.message()).await.expect("no message") {
                Ok(message) => {
                    let message = message.expect("sessions end with a status");
                    assert!(message.ended.is_empty(), "{message:?}");
                }
                Err(status) => return status,
            }
        }
    }

    /// Sends and reads to the end.
    pub(crate) async fn complete(&mut self, generate: Generate) -> (Answer, Finished) {
        let handle = self.send(generate).await;
        self.finish(handle).await
    }
}

pub(crate) fn request(number: u128) -> RequestId {
    RequestId::from_u128(number)
}

/// A greedy request of tenant 1.
pub(crate) fn generate(number: u128, prompt: Vec<u32>, max_tokens: u32) -> Generate {
    Generate {
        handle: 0,
        request_id: request(number).to_string(),
        attempt: 1,
        tenant_id: tenant(1).to_string(),
        version_id: version().to_string(),
        prompt,
        max_tokens,
        sampling: Some(Sampling { top_p: 1.0, ..Sampling::default() }),
        stop: Vec::new(),
        class: Class::Interactive.into(),
        tenant_weight: 1,
        n: 0,
        shown_control_tokens: Vec::new(),
        billing: Some(Billing {
            key_id: KeyId::from_u128(7).to_string(),
            project: Some("search".into()),
            client_request_id: None,
            idempotency_key_hash: None,
            requested_model: "the-model".into(),
            received_at_us: 1_790_000_000_000_000,
        }),
        grammar: None,
    }
}
