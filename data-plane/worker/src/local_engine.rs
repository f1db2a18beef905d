//! One engine as the worker runs it (step loop, text, sessions, execution records) with nothing around it: no RPC, no
//! artifacts, no control plane. For measuring the step loop, and for testing it to the microsecond.

use std::sync::Arc;
use std::time::Instant;

use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_engine::{Engine, EngineConfig, EngineError, Executor, SequenceRequest};
use weir_metering::{LogError, RecordLog};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{InstanceId, RequestId, TenantId, VersionId, WorkerId};
use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::StepMessage;
use weir_text::{GrammarMatcher, StopMatcher, TextModel};

use crate::execution::{AttemptId, ExecutionLog, Used};
use crate::host::{self, EngineHandle, NewAttempt, NewChoice};
use crate::metrics::Metrics;
use crate::session::{Session, Sessions};

/// Why there is no engine, or no request on it.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The executor's limits do not make an engine.
    #[error("the engine cannot start")]
    Engine(#[from] EngineError),
    /// The system gave no thread.
    #[error("no thread for the step loop")]
    Thread(#[source] std::io::Error),
    /// The record log takes nothing new.
    #[error("the attempt could not be recorded")]
    Record(#[from] LogError),
    /// The session's handles do not ascend, or its step loop has ended.
    #[error("the request could not be handed over")]
    NotTaken,
}

/// A running step loop. It ends when this is dropped and its work is done.
#[derive(Debug)]
pub struct LocalEngine {
    handle: EngineHandle,
    executions: ExecutionLog,
    sessions: Sessions,
}

/// A gateway's session with it.
#[derive(Debug)]
pub struct LocalSession {
    session: Arc<Session>,
    /// One message a step that had something for this session.
    pub messages: mpsc::Receiver<StepMessage>,
}

/// One request, as the worker has it after it has read the wire.
#[derive(Debug)]
pub struct LocalRequest {
    /// Ascends within a session.
    pub handle: u64,
    /// For the execution record.
    pub id: RequestId,
    /// For the execution record.
    pub tenant: TenantId,
    /// What to generate.
    pub sequence: SequenceRequest,
    /// What ends it early.
    pub stop: StopMatcher,
    /// What constrains it, if the sequence is constrained.
    pub grammar: Option<GrammarMatcher>,
}

impl LocalEngine {
    /// Starts a step loop on an executor. `now` times the steps, `clock` dates the records; the metrics go into
    /// `registry`.
    ///
    /// # Errors
    /// [`LocalError::Engine`] or [`LocalError::Thread`].
    pub fn start<X: Executor + 'static>(
        executor: X,
        text: Arc<TextModel>,
        log: Arc<RecordLog>,
        now: impl Fn() -> Instant + Send + 'static,
        clock: Clock,
        registry: &mut Registry,
    ) -> Result<Self, LocalError> {
        let (executor, step_clock) = host::timed(executor, now);
        let engine = Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor)?;
        let metrics = Metrics::new(registry).engine(VersionId::from_u128(1));
        // Nobody waits for a loss: it shows in that the sessions end.
        let lost = CancellationToken::new();
        let handle = host::spawn(engine, step_clock, text, "local", metrics, lost);
        let handle = handle.map_err(LocalError::Thread)?;
        let (worker, instance) = (WorkerId::from_u128(1), InstanceId::from_u128(1));
        let executions = ExecutionLog::new(log, worker, instance, clock);
        Ok(Self { handle, executions, sessions: Sessions::default() })
    }

    /// Opens a session for a gateway.
    pub fn open_session(&self, gateway: &str) -> LocalSession {
        let (session, messages) = self.sessions.open(gateway.to_owned());
        LocalSession { session, messages }
    }

    /// Opens the request's record and hands it to the step loop; waits while that has too many to take.
    ///
    /// # Errors
    /// [`LocalError::Record`] or [`LocalError::NotTaken`].
    pub async fn generate(&self, session: &LocalSession, request: LocalRequest) -> Result<(), LocalError> {
        let LocalRequest { handle, id, tenant, sequence: request, stop, grammar } = request;
        let session = session.session.clone();
        let cancel = session.received(handle).ok_or(LocalError::NotTaken)?;
        let attempt = AttemptId { request: id, attempt: 1, tenant, version: VersionId::from_u128(1) };
        let execution = self.executions.begin(attempt, request.prompt.len() as u64, 1, None)?;
        match self.handle.arrivals.reserve().await {
            Ok(permit) => {
                let shown = Vec::new();
                let choices = vec![NewChoice { handle, cancel, request, stop, shown, grammar }];
                permit.send(Box::new(NewAttempt { session, execution, choices }));
                Ok(())
            }
            Err(_) => {
                execution.close(Used::default(), ExecutionOutcome::Refused);
                Err(LocalError::NotTaken)
            }
        }
    }
}

impl LocalSession {
    /// Cancels a request, if it is not over.
    pub fn cancel(&self, handle: u64) {
        self.session.cancel(handle);
    }
}

impl Drop for LocalSession {
    /// What is left of it is cancelled.
    fn drop(&mut self) {
        self.session.close();
    }
}
