//! The step loop and the engine's public face.

mod config;
mod counters;

pub use config::{ConfigError, EngineConfig};
pub use counters::{EngineCounters, EngineLoad};

use crate::executor::ExecutorError;
use crate::sequence::{SequenceEvent, SequenceId};

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
    /// New tokens computed in this step, for each row of its plan, in the plan's order: how far a prompt got, when
    /// a sequence first ran, and whom the step's time is attributed to.
    pub computed: Vec<(SequenceId, u32)>,
    /// Rows of the step; zero if there was nothing to compute.
    pub num_rows: u32,
    /// Rows that produced a token after their prompt was complete.
    pub decode_tokens: u32,
    /// New tokens of rows that were catching up with prompt or recomputed tokens.
    pub prefill_tokens: u32,
}
