//! The step loop and the engine's public face.
//!
//! One owner, one thread. [`Engine::step`] is plan, submit, collect, commit; the halves are public too, so that
//! an owner can take in requests and cancellations while a device works.

mod config;
mod counters;
mod request_check;

pub use config::{ConfigError, EngineConfig};
pub use counters::{EngineCounters, EngineLoad};

use crate::executor::{Capacity, Executor, ExecutorError, Ticket};
use crate::scheduler::{Scheduler, StepTotals};
use crate::sequence::{Commit, SequenceEvent, SequenceId, SequenceRequest};

/// Why a request was not taken. Nothing of it remains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// `max_tokens` is zero.
    #[error("max_tokens is zero")]
    NoOutput,
    /// A prompt token is not in the vocabulary.
    #[error("prompt token {position} is outside a vocabulary of {vocab_size}")]
    UnknownToken {
        /// Index in the prompt.
        position: usize,
        /// Size of the vocabulary.
        vocab_size: u32,
    },
    /// A sampling parameter is out of range.
    #[error("sampling parameter {0} is out of range")]
    InvalidSampling(&'static str),
    /// Prompt and output together exceed the model's context.
    #[error("{tokens} tokens exceed the context of {context_limit}")]
    ContextLength {
        /// Prompt and `max_tokens` together.
        tokens: u64,
        /// Most positions a sequence may have.
        context_limit: u32,
    },
    /// Prompt and output together need more pages than the whole pool has.
    #[error("{blocks} blocks are needed, the pool has {num_pages}")]
    NeverFits {
        /// Blocks needed at full length.
        blocks: u64,
        /// Blocks of the pool.
        num_pages: u32,
    },
    /// Too many sequences or prompt tokens wait already.
    #[error("the waiting queue is full")]
    QueueFull,
}

/// Why a step failed. The sequences in it end with [`crate::FinishReason::Error`], reported by the next step;
/// all others are untouched.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration does not fit the executor.
    #[error("the engine's configuration does not fit its executor")]
    Config(#[source] ConfigError),
    /// The executor failed.
    #[error("the executor failed")]
    Executor(#[source] ExecutorError),
    /// The executor's output does not match the plan.
    #[error("{sampled} tokens came back for {expected} sampling rows")]
    OutputMismatch {
        /// Sampling rows of the plan.
        expected: usize,
        /// Entries of the output.
        sampled: usize,
    },
    /// A step is in flight already, or none is.
    #[error("submit and collect must alternate")]
    OutOfTurn,
}

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// What happened to sequences since the last report, in order.
    pub events: Vec<SequenceEvent>,
    /// New tokens computed in this step, for each row of its plan, in the plan's order: how far a prompt got,
    /// when a sequence first ran, and whom the step's time is attributed to.
    pub computed: Vec<(SequenceId, u32)>,
    /// Rows of the step; zero if there was nothing to compute.
    pub num_rows: u32,
    /// Tokens computed one at a time after a prompt was complete.
    pub decode_tokens: u32,
    /// Tokens computed to catch up with prompts or after preemption.
    pub prefill_tokens: u32,
}

/// Runs sequences on an executor.
pub struct Engine<X> {
    executor: X,
    capacity: Capacity,
    scheduler: Scheduler,
    in_flight: Option<Ticket>,
    /// Events that no report has carried yet.
    events: Vec<SequenceEvent>,
}

impl<X: Executor> Engine<X> {
    /// # Errors
    /// [`EngineError::Config`] if the dials do not fit the executor or each other.
    pub fn new(config: EngineConfig, executor: X) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        config.validate(&capacity).map_err(EngineError::Config)?;
        let scheduler = Scheduler::new(config, &capacity);
        Ok(Self { executor, capacity, scheduler, in_flight: None, events: Vec::new() })
    }

    /// Queues a request. Its tokens and its end come as events of later steps.
    ///
    /// # Errors
    /// [`AddError`] if it is malformed, could never run, or if too much waits already.
    pub fn add(&mut self, request: SequenceRequest, commit: Box<dyn Commit>) -> Result<SequenceId, AddError> {
        request_check::check(&request, &self.capacity)?;
        self.scheduler.add(request, commit)
    }

    /// Ends a sequence. Its pages are free when this returns, or, if the step in flight names them, when that
    /// step is collected. Its last event is in the next report. Unknown and finished ids are passed over.
    pub fn cancel(&mut self, id: SequenceId) {
        self.scheduler.cancel(id, &mut self.events);
    }

    /// Plans a step, runs it and commits it. Without anything to compute it only reports pending events.
    ///
    /// # Errors
    /// See [`EngineError`]; the engine stays usable.
    pub fn step(&mut self) -> Result<StepReport, EngineError> {
        self.submit_step()?;
        self.collect_step()
    }

    /// Plans a step and hands it to the executor. False if there was nothing to compute.
    ///
    /// # Errors
    /// [`EngineError::OutOfTurn`] if a step is in flight; [`EngineError::Executor`] if it refused the plan.
    pub fn submit_step(&mut self) -> Result<bool, EngineError> {
        if self.in_flight.is_some() {
            return Err(EngineError::OutOfTurn);
        }
        let Some(plan) = self.scheduler.plan() else { return Ok(false) };
        match self.executor.submit(plan) {
            Ok(ticket) => {
                self.in_flight = Some(ticket);
                Ok(true)
            }
            Err(error) => Err(self.fail(EngineError::Executor(error))),
        }
    }

    /// Waits for the step in flight, if there is one, and commits it.
    ///
    /// # Errors
    /// [`EngineError`] if the step failed. Events are kept for the next report.
    pub fn collect_step(&mut self) -> Result<StepReport, EngineError> {
        let mut totals = StepTotals::default();
        if let Some(ticket) = self.in_flight.take() {
            let output = match self.executor.collect(ticket) {
                Ok(output) => output,
                Err(error) => return Err(self.fail(EngineError::Executor(error))),
            };
            totals = match self.scheduler.commit(&output, &mut self.events) {
                Ok(totals) => totals,
                Err(mismatch) => {
                    let (expected, sampled) = (mismatch.expected, output.sampled.len());
                    return Err(self.fail(EngineError::OutputMismatch { expected, sampled }));
                }
            };
        }
        debug_assert_eq!(self.scheduler.check_integrity(), Ok(()));
        Ok(StepReport {
            events: std::mem::take(&mut self.events),
            computed: totals.computed,
            num_rows: totals.num_rows,
            decode_tokens: totals.decode_tokens,
            prefill_tokens: totals.prefill_tokens,
        })
    }

    /// True as long as a step has something to compute or to report.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_sequences() || self.in_flight.is_some() || !self.events.is_empty()
    }

    /// What the engine holds now. Cost: O(running).
    pub fn load(&self) -> EngineLoad {
        self.scheduler.load()
    }

    /// Totals since start.
    pub fn counters(&self) -> &EngineCounters {
        self.scheduler.counters()
    }

    /// Limits of the executor.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// The executor, for its own figures.
    pub fn executor(&self) -> &X {
        &self.executor
    }

    /// Verifies every invariant of queues and pages. O(pages + sequences): for tests and debugging.
    ///
    /// # Errors
    /// A text that names the broken invariant.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.scheduler.check_integrity()
    }

    fn fail(&mut self, error: EngineError) -> EngineError {
        self.scheduler.fail_in_flight(&mut self.events);
        error
    }
}

impl<X> std::fmt::Debug for Engine<X> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Engine")
            .field("capacity", &self.capacity)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
