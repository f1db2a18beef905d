//! The step loop and the engine's public face.
//!
//! One owner, one thread. [`Engine::step`] keeps as many plans submitted as the executor takes, then collects and commits
//! the oldest: so a device that takes two has the next step at hand when one ends, and its tokens are committed,
//! delivered and planned on while it runs. The halves are public too, so that an owner can take in requests and
//! cancellations between them.

mod config;
mod counters;
mod request_check;

pub use config::{ConfigError, EngineConfig};
pub use counters::{EngineCounters, EngineLoad};

use std::collections::VecDeque;

use crate::executor::{Capacity, Executor, ExecutorError, Ticket};
use crate::scheduler::{OutputMismatch, Scheduler};
use crate::sequence::{Commit, SequenceId, SequenceRequest, Sink};

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

/// Why a step failed. The sequences in flight have ended with [`crate::FinishReason::Error`]; all others are untouched.
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
    /// As many steps are in flight as the executor takes, or the latest waits for masks.
    #[error("no further step may be submitted before one is collected")]
    OutOfTurn,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Rows of the step; zero if there was nothing to compute.
    pub num_rows: u32,
    /// Tokens computed one at a time after a prompt was complete.
    pub decode_tokens: u32,
    /// Tokens computed to catch up with prompts or after preemption.
    pub prefill_tokens: u32,
}

impl EngineError {
    /// True if no later step can succeed.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Executor(error) if error.is_fatal())
    }
}

/// Runs sequences on an executor, and keeps a `C` for each of them.
pub struct Engine<X, C> {
    executor: X,
    capacity: Capacity,
    scheduler: Scheduler<C>,
    /// Oldest first.
    in_flight: VecDeque<Ticket>,
}

impl<X: Executor, C: Commit> Engine<X, C> {
    /// # Errors
    /// [`EngineError::Config`] if the dials do not fit the executor or each other.
    pub fn new(config: EngineConfig, executor: X) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        config.validate(&capacity).map_err(EngineError::Config)?;
        let scheduler = Scheduler::new(config, &capacity);
        Ok(Self { executor, capacity, scheduler, in_flight: VecDeque::new() })
    }

    /// Queues a request. Its tokens and its end are told to the sinks of later steps.
    ///
    /// # Errors
    /// [`AddError`] if it is malformed, could never run, or if too much waits already.
    pub fn add(&mut self, request: SequenceRequest, commit: C) -> Result<SequenceId, AddError> {
        request_check::check(&request, &self.capacity)?;
        self.scheduler.add(request, commit)
    }

    /// Ends a sequence: nothing of it that is still in flight is delivered or counted. Its pages are free when this
    /// returns, or, if steps in flight name them, when the last of those is collected. Unknown and finished ids are passed
    /// over.
    pub fn cancel(&mut self, id: SequenceId, sink: &mut impl Sink<C>) {
        self.scheduler.cancel(id, sink);
    }

    /// Ends a sequence that never had a seat, of which nothing was computed therefore; leaves all others alone. Returns
    /// whether it did.
    pub fn cancel_if_waiting(&mut self, id: SequenceId, sink: &mut impl Sink<C>) -> bool {
        self.scheduler.cancel_if_waiting(id, sink)
    }

    /// Submits what the executor takes, then waits for the oldest step and commits it. Does nothing without anything to
    /// compute.
    ///
    /// # Errors
    /// See [`EngineError`]; unless it is fatal, the engine stays usable.
    pub fn step(&mut self, sink: &mut impl Sink<C>) -> Result<StepReport, EngineError> {
        while self.may_submit() && self.submit_step(sink)? {}
        self.collect_step(sink)
    }

    /// Plans a step and hands it to the executor. False if there was nothing to compute.
    ///
    /// # Errors
    /// [`EngineError::OutOfTurn`] if no more steps may be in flight; [`EngineError::Executor`] if it refused the plan.
    pub fn submit_step(&mut self, sink: &mut impl Sink<C>) -> Result<bool, EngineError> {
        if !self.may_submit() {
            return Err(EngineError::OutOfTurn);
        }
        let Some(plan) = self.scheduler.plan() else { return Ok(false) };
        match self.executor.submit(plan) {
            Ok(ticket) => self.in_flight.push_back(ticket),
            Err(error) => {
                self.scheduler.fail_latest(sink);
                return Err(EngineError::Executor(error));
            }
        }
        self.supply_masks(sink)?;
        Ok(true)
    }

    /// Waits for the oldest step in flight, if there is one, and commits it.
    ///
    /// # Errors
    /// [`EngineError`] if the step failed.
    pub fn collect_step(&mut self, sink: &mut impl Sink<C>) -> Result<StepReport, EngineError> {
        let mut report = StepReport::default();
        if let Some(ticket) = self.in_flight.pop_front() {
            let output = match self.executor.collect(ticket) {
                Ok(output) => output,
                Err(error) => return Err(self.fail(EngineError::Executor(error), sink)),
            };
            report = match self.scheduler.commit(&output, sink) {
                Ok(report) => report,
                Err(OutputMismatch { expected, sampled }) => {
                    return Err(self.fail(EngineError::OutputMismatch { expected, sampled }, sink));
                }
            };
            self.supply_masks(sink)?;
        }
        debug_assert_eq!(self.scheduler.check_integrity(), Ok(()));
        Ok(report)
    }

    /// Ends every sequence with [`crate::FinishReason::Error`], after an error that is fatal.
    pub fn fail_all(&mut self, sink: &mut impl Sink<C>) {
        self.in_flight.clear();
        self.scheduler.fail_all(sink);
    }

    fn may_submit(&self) -> bool {
        self.in_flight.len() < self.capacity.max_in_flight as usize && !self.scheduler.lacks_masks()
    }

    /// Hands the latest step its masks as soon as the tokens that they follow from are committed.
    fn supply_masks(&mut self, sink: &mut impl Sink<C>) -> Result<(), EngineError> {
        let Some(masks) = self.scheduler.take_masks() else { return Ok(()) };
        let Some(&ticket) = self.in_flight.back() else { return Ok(()) };
        self.executor
            .supply_masks(ticket, masks)
            .map_err(|error| self.fail(EngineError::Executor(error), sink))
    }

    /// True as long as a step has something to compute or to collect.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_sequences() || !self.in_flight.is_empty()
    }

    /// True as long as a sequence is not over.
    pub fn has_sequences(&self) -> bool {
        self.scheduler.has_sequences()
    }

    /// Every sequence that is not over, and what is kept for it.
    pub fn sequences(&self) -> impl Iterator<Item = (SequenceId, &C)> {
        self.scheduler.sequences()
    }

    /// What the engine holds now.
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

    /// Every step in flight is lost.
    fn fail(&mut self, error: EngineError, sink: &mut impl Sink<C>) -> EngineError {
        for ticket in self.in_flight.drain(..) {
            // Void already, or of no use: whichever it says, the sequences of the step end.
            drop(self.executor.collect(ticket));
        }
        self.scheduler.fail_in_flight(sink);
        error
    }
}

impl<X, C> std::fmt::Debug for Engine<X, C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Engine")
            .field("capacity", &self.capacity)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
