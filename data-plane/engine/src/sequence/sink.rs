//! What the engine tells of sequences, and to whom.

use crate::sequence::{SequenceId, TokenId};
use crate::step::TokenLogprobs;

/// Hears what becomes of sequences, each thing as it happens. What the engine keeps for a sequence (`C`, see
/// [`super::Commit`]) is lent with it, so that whoever listens need not look it up, and given back at the end.
///
/// A sequence advances any number of times and then finishes once.
pub trait Sink<C> {
    /// A step was collected that computed `num_tokens` new tokens of sequences that are not over; what it was to each of
    /// them follows, in the order of the step's rows.
    fn collected(&mut self, num_tokens: u32) {
        let _ = num_tokens;
    }

    /// A step computed something of a sequence.
    fn advanced(&mut self, id: SequenceId, kept: &mut C, advance: Advance<'_>);

    /// The sequence is over. Its pages are free, or will be when the last submission that names them is collected.
    fn finished(&mut self, id: SequenceId, kept: C, reason: FinishReason, usage: SequenceUsage);
}

/// What a step was to one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advance<'a> {
    /// New positions computed: how far a prompt got, and what share of the step's time is due to this sequence.
    pub computed: u32,
    /// Tokens generated and counted; the stop token that ended the sequence is one of them. None if more of the prompt
    /// follows. All of a sequence's are as many as [`SequenceUsage::generated_tokens`].
    pub tokens: &'a [TokenId],
    /// For each of those tokens, if the request asked for log-probabilities.
    pub logprobs: &'a [TokenLogprobs],
}

/// The same as a list, for callers to whom its cost does not matter.
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
    /// The sequence is over.
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
    pub fn id(&self) -> SequenceId {
        match self {
            Self::Token { id, .. } | Self::Finished { id, .. } => *id,
        }
    }
}

impl<C> Sink<C> for Vec<SequenceEvent> {
    fn advanced(&mut self, id: SequenceId, _kept: &mut C, advance: Advance<'_>) {
        let mut logprobs = advance.logprobs.iter().cloned().map(Box::new);
        self.extend(advance.tokens.iter().map(|&token| SequenceEvent::Token {
            id,
            token,
            logprobs: logprobs.next(),
        }));
    }

    fn finished(&mut self, id: SequenceId, _kept: C, reason: FinishReason, usage: SequenceUsage) {
        self.push(SequenceEvent::Finished { id, reason, usage });
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
