//! What the engine reports of a sequence.

use crate::sequence::{SequenceId, TokenId};
use crate::step::TokenLogprobs;

/// One thing that happened to a sequence. A sequence has any number of `Token`s and then exactly one
/// `Finished`; the number of its `Token`s equals [`SequenceUsage::generated_tokens`].
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceEvent {
    /// A token was generated and counted.
    Token {
        /// Whose token.
        id: SequenceId,
        /// The token; also the stop token that ended the sequence.
        token: TokenId,
        /// Its log-probabilities, if the request asked for them.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// The sequence is over. Its pages are free, or will be when the last submission that names them is collected.
    Finished {
        /// Which sequence.
        id: SequenceId,
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: SequenceUsage,
    },
}

impl SequenceEvent {
    /// Whose event it is.
    #[inline]
    pub fn id(&self) -> SequenceId {
        match self {
            Self::Token { id, .. } | Self::Finished { id, .. } => *id,
        }
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token, or the verdict of [`super::Commit`].
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// `Engine::cancel` was called.
    Cancelled,
    /// The executor failed on a step that held this sequence.
    Error,
}

/// What a sequence used, in tokens. The one count that limits, bills and dashboards show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceUsage {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens taken from the prefix cache instead of being computed, each counted once.
    pub cached_prompt_tokens: u32,
    /// Prompt tokens computed, each counted once however often it was recomputed. With `cached_prompt_tokens`
    /// this is how far the prompt got: `prompt_tokens` as soon as there is a first token.
    pub computed_prompt_tokens: u32,
    /// Every sampled token up to and including the one that ended the sequence.
    pub generated_tokens: u32,
    /// How often the sequence lost its pages and had to be recomputed.
    pub preemptions: u32,
}
