//! Stage 7, stream: one admitted request from dispatch to its end. Whoever holds a [`Generation`] takes its events;
//! dropping it before its end cancels the work. Either way the sequence is ended once: the record closed, the
//! reservation settled, the permits back (`generation/settle.rs`).

mod attempt;
mod patience;
mod progress;
mod settle;

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio_util::task::TaskTracker;
use weir_schemas::config_snapshot::Slo;
use weir_schemas::ids::{VersionId, WorkerId};
use weir_schemas::records::{FinishReason, RejectionReason};
use weir_schemas::rpc::worker::{FinishReason as WireReason, Finished, Generate, TokenLogprob};
use weir_text::{AnswerEvent, AnswerParser};

use attempt::{Attempt, dispatch};
use patience::{Patience, Waited};
pub(crate) use progress::ProgressBoard;
use progress::WatchedRecord;

use crate::admission::Reservation;
use crate::error::GatewayError;
use crate::grammar::AskedBy;
use crate::indexed_config::IndexedConfig;
use crate::metrics::{Metrics, OverloadAction};
use crate::openai::answer;
use crate::record::{Counts, OpenRecord};
use crate::routing::{End, Expected, Link, NoReplica, Registry, Taken};

/// The first replica and one other.
const MAX_ATTEMPTS: usize = 2;
/// Told to clients when every replica's queue is full.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What all generations of a gateway share.
#[derive(Debug)]
pub(crate) struct GenerationParts {
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Metrics,
    pub(crate) progress: Arc<ProgressBoard>,
    /// Owns the cancellations that outlive their requests.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
    /// From arrival to the last token.
    pub(crate) request_timeout: Duration,
}

/// Everything decided about a request before it is sent.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) config: Arc<IndexedConfig>,
    pub(crate) version: VersionId,
    pub(crate) model: String,
    /// Handle and attempt are filled in here.
    pub(crate) generate: Generate,
    pub(crate) reservation: Reservation,
    pub(crate) arrived: Instant,
    /// The bound that its length was checked against, and the parameter that holds the prompt: for error texts.
    pub(crate) context_tokens: u64,
    pub(crate) param: &'static str,
    /// The parameter that asked for the grammar, if there is one.
    pub(crate) grammar_asked_by: Option<AskedBy>,
    /// What it met when it was admitted.
    pub(crate) load: (Expected, Slo),
    /// If it has not begun to be computed by then, it is refused.
    pub(crate) give_up_at: Instant,
    /// Reads each choice; without one all text is content.
    pub(crate) parser: Option<AnswerParser>,
}

/// What a request's holder is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// More of a choice.
    Said { choice: usize, said: Vec<AnswerEvent>, logprobs: Vec<TokenLogprob> },
    /// A choice is complete.
    Finished { choice: usize, reason: answer::FinishReason },
    /// All are. The record is closed already.
    End(Counts),
}

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Generation {
    parts: Arc<GenerationParts>,
    /// Taken by whoever ends it.
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    admitted: Admitted,
    record: WatchedRecord,
    attempt: Attempt,
    tried: Vec<WorkerId>,
    deadline: tokio::time::Instant,
    patience: Patience,
    _inflight: Inflight,
}

/// Counts a request in the gauge of its model while it lives.
#[derive(Debug)]
struct Inflight(Gauge);

impl Inflight {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Inflight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Generation {
    /// Sends an admitted request to the replica that was chosen for it. On an error everything is settled already.
    pub(crate) fn start(
        parts: Arc<GenerationParts>,
        admitted: Admitted,
        chosen: Arc<Link>,
        record: OpenRecord,
    ) -> Result<Self, GatewayError> {
        let mut tried = Vec::new();
        let inflight = Inflight::new(parts.metrics.inflight(&admitted.model));
        let record = parts.progress.watch(record);
        match dispatch(&parts, &admitted, Some(chosen), &record, &mut tried) {
            Ok(attempt) => {
                let deadline = tokio::time::Instant::from_std(admitted.arrived) + parts.request_timeout;
                let patience = Patience::Until(admitted.give_up_at.into());
                let running =
                    Running { admitted, record, attempt, tried, deadline, patience, _inflight: inflight };
                Ok(Self { parts, running: Some(running) })
            }
            Err(none) => {
                let reason = match none {
                    NoReplica::Warming { .. } => FinishReason::ModelWarming,
                    NoReplica::TooLong { .. } => FinishReason::Rejected,
                };
                let error = admitted.no_replica(none);
                settle::never_ran(admitted, record, reason);
                Err(error)
            }
        }
    }

    /// The next event; after [`Event::End`] or an error there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Event, GatewayError> {
        loop {
            if let Some(event) = self.poll() {
                return event;
            }
            let running = self.running.as_mut().ok_or(GatewayError::Internal("polled after its end"))?;
            match running.wait().await {
                Waited::News => {}
                Waited::LongEnough => self.give_up(),
                Waited::Deadline => return Err(self.deadline_passed()),
            }
        }
    }

    /// What has arrived and was not told. `None`: nothing.
    fn poll(&mut self) -> Option<Result<Event, GatewayError>> {
        let choices = self.running.as_ref()?.attempt.mailboxes.len();
        for choice in 0..choices {
            let attempt = &self.running.as_ref()?.attempt;
            if attempt.told[choice].is_some() {
                continue;
            }
            let Taken { said, has_called, logprobs, tokens, end } = attempt.mailboxes[choice].take();
            if !said.is_empty() || !logprobs.is_empty() {
                return Some(Ok(Event::Said { choice, said, logprobs }));
            }
            let event = match end {
                Some(End::Finished(finished)) => self.finished(choice, has_called, &finished),
                Some(End::Lost) => self.lost(tokens),
                None => continue,
            };
            // Sent to another replica: from the beginning.
            return event.or_else(|| self.poll());
        }
        self.end_if_complete()
    }

    /// The worker says how a choice ended. `None`: the request was sent to another replica.
    fn finished(
        &mut self,
        choice: usize,
        has_called: bool,
        finished: &Finished,
    ) -> Option<Result<Event, GatewayError>> {
        let outcome = match finished.reason() {
            WireReason::Stop if has_called => {
                Outcome::End(FinishReason::ToolCalls, answer::FinishReason::ToolCalls)
            }
            WireReason::Stop => Outcome::End(FinishReason::Stop, answer::FinishReason::Stop),
            WireReason::Length => Outcome::End(FinishReason::Length, answer::FinishReason::Length),
            WireReason::Cancelled => {
                let running = self.running.as_ref()?;
                if running.was_given_up(finished) {
                    return Some(Err(self.full()));
                }
                if running.attempt.mailboxes[choice].is_exhausted() {
                    self.parts.metrics.cut_by_limits.inc();
                    return self.ended(choice, FinishReason::Length, answer::FinishReason::Length);
                }
                // Not by this gateway's wish: the worker is going down.
                if finished.generated_tokens == 0 && self.try_another() {
                    return None;
                }
                Outcome::Fault(FinishReason::ReplicaLost, GatewayError::ReplicaLost)
            }
            WireReason::Error | WireReason::Unspecified => {
                Outcome::Fault(FinishReason::Error, GatewayError::EngineFailed)
            }
            WireReason::RefusedInvalid => {
                let error = self.running.as_ref()?.admitted.invalid(finished);
                Outcome::Fault(FinishReason::Rejected, error)
            }
            WireReason::RefusedNeverFits => {
                let admitted = &self.running.as_ref()?.admitted;
                Outcome::Fault(FinishReason::Rejected, admitted.too_long(admitted.context_tokens))
            }
            WireReason::RefusedNotLoaded => {
                if self.try_another() {
                    return None;
                }
                let retry_after = FULL_RETRY_AFTER;
                let model = self.running.as_ref()?.admitted.model.clone();
                Outcome::Fault(FinishReason::ModelWarming, GatewayError::ModelWarming { model, retry_after })
            }
            WireReason::RefusedFull => {
                if self.try_another() {
                    return None;
                }
                return Some(Err(self.full()));
            }
        };
        match outcome {
            Outcome::End(reason, shown) => self.ended(choice, reason, shown),
            Outcome::Fault(reason, error) => {
                self.fail(reason);
                Some(Err(error))
            }
        }
    }

    fn ended(
        &mut self,
        choice: usize,
        reason: FinishReason,
        shown: answer::FinishReason,
    ) -> Option<Result<Event, GatewayError>> {
        self.running.as_mut()?.attempt.told[choice] = Some(reason);
        Some(Ok(Event::Finished { choice, reason: shown }))
    }

    /// It waited for nothing: it is refused, as if it had not come.
    fn full(&mut self) -> GatewayError {
        self.parts.metrics.rejection(RejectionReason::Capacity);
        if let Some(Running { admitted, .. }) = &self.running {
            let class = admitted.generate.class();
            self.parts.metrics.overload(&admitted.model, class, OverloadAction::Refused);
        }
        let load = self.running.as_ref().map(|running| running.admitted.load);
        self.fail(FinishReason::Rejected);
        GatewayError::Capacity { retry_after: FULL_RETRY_AFTER, load }
    }

    /// It has waited as long as it may: if it still waits, the worker drops it, and says so.
    fn give_up(&mut self) {
        let Some(running) = &mut self.running else { return };
        running.patience = Patience::Over;
        self.parts.tasks.spawn_on(running.attempt.give_up(), &self.parts.runtime);
    }

    /// The end, if every choice has ended and the holder knows.
    fn end_if_complete(&mut self) -> Option<Result<Event, GatewayError>> {
        let told = self.running.as_ref()?.attempt.told.iter().copied().collect::<Option<Vec<_>>>()?;
        let unstopped = told.into_iter().find(|reason| *reason != FinishReason::Stop);
        let running = self.running.take()?;
        Some(Ok(Event::End(settle::end(running, unstopped.unwrap_or(FinishReason::Stop)))))
    }

    /// The replica is gone. `None`: it was sent to another one, which is possible before the first token.
    fn lost(&mut self, tokens: u64) -> Option<Result<Event, GatewayError>> {
        if tokens == 0 && self.try_another() {
            return None;
        }
        self.fail(FinishReason::ReplicaLost);
        Some(Err(GatewayError::ReplicaLost))
    }

    /// Ends the request at once if nothing of it runs any more, else as soon as its other choices are stopped.
    fn fail(&mut self, reason: FinishReason) {
        let Some(running) = self.running.take() else { return };
        if running.attempt.has_ended() {
            settle::end(running, reason);
        } else {
            self.end_in_background(running, reason);
        }
    }

    fn try_another(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        if running.tried.len() >= MAX_ATTEMPTS || running.attempt.has_tokens() {
            return false;
        }
        match dispatch(&self.parts, &running.admitted, None, &running.record, &mut running.tried) {
            Ok(attempt) => {
                let left = std::mem::replace(&mut running.attempt, attempt);
                // It waits anew; if its time is over already, only where there is no seat for it.
                running.patience = Patience::Until(running.admitted.give_up_at.into());
                if !left.has_ended() {
                    self.parts.tasks.spawn_on(left.cancel(), &self.parts.runtime);
                }
                self.parts.metrics.failovers.inc();
                true
            }
            Err(_) => false,
        }
    }

    fn deadline_passed(&mut self) -> GatewayError {
        if let Some(running) = self.running.take() {
            self.end_in_background(running, FinishReason::Deadline);
        }
        GatewayError::Deadline { limit: self.parts.request_timeout }
    }

    fn end_in_background(&self, running: Running, reason: FinishReason) {
        self.parts.tasks.spawn_on(settle::cancel(running, reason), &self.parts.runtime);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.end_in_background(running, FinishReason::Cancelled);
        }
    }
}

enum Outcome {
    End(FinishReason, answer::FinishReason),
    Fault(FinishReason, GatewayError),
}

impl Admitted {
    /// Grammars are compiled at the worker; all else was checked here.
    fn invalid(&self, finished: &Finished) -> GatewayError {
        let Some(asked_by) = self.grammar_asked_by else {
            tracing::error!("a worker refused a request as invalid that this gateway had checked");
            return GatewayError::EngineFailed;
        };
        asked_by.refused(&finished.message).into()
    }

    fn too_long(&self, limit_tokens: u64) -> GatewayError {
        GatewayError::ContextLength {
            limit_tokens,
            prompt_tokens: self.generate.prompt.len() as u64,
            output_tokens: u64::from(self.generate.max_tokens),
            param: self.param,
        }
    }

    fn no_replica(&self, none: NoReplica) -> GatewayError {
        match none {
            NoReplica::Warming { retry_after } => {
                GatewayError::ModelWarming { model: self.model.clone(), retry_after }
            }
            NoReplica::TooLong { max_sequence_tokens } => self.too_long(max_sequence_tokens),
        }
    }
}
