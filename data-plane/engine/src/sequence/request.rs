//! What the worker hands to the engine for one sequence.

use crate::sampling::SamplingParams;
use crate::sequence::TokenId;
use crate::step::TokenMask;

/// A tenant as a number. The engine never learns who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantIndex(pub u64);

/// Who goes first. Interactive before batch, and batch is guaranteed a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Somebody is waiting for the tokens.
    Interactive,
    /// Throughput matters, latency does not.
    Batch,
}

/// One request to generate.
#[derive(Clone, Debug)]
pub struct SequenceRequest {
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// Most tokens to generate, at least one.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Added to the logits of these tokens, each named once.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// [`Commit::mask`] says which tokens may follow.
    pub is_constrained: bool,
    /// Tokens that end the sequence (end of sequence, end of turn). The one that does is counted.
    pub stop_tokens: Vec<TokenId>,
    /// Root of the prefix cache's hash chain: requests share cached blocks only if this is equal. One secret
    /// value a tenant, so that tenants cannot see each other's prompts in timing.
    pub cache_salt: [u8; 32],
    /// Whose service this is counted as.
    pub tenant: TenantIndex,
    /// Share of that tenant relative to others; 0 is taken as 1.
    pub tenant_weight: u32,
    /// Who goes first.
    pub class: Class,
}

impl SequenceRequest {
    /// The only tenant's, interactive, free in what it says, and ended by its length alone.
    pub fn new(prompt: Vec<TokenId>, max_tokens: u32, sampling: SamplingParams) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling,
            logit_bias: Vec::new(),
            is_constrained: false,
            stop_tokens: Vec::new(),
            cache_salt: [0; 32],
            tenant: TenantIndex(0),
            tenant_weight: 1,
            class: Class::Interactive,
        }
    }
}

/// What the outside decides about a token while it is being committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// This token completed a stop condition: it is counted, and it is the last one.
    Stop,
}

/// Runs inside the engine's commit for each new token (detokenizer and stop matcher), so that nothing after a
/// stop is computed into the answer, delivered or counted. Must be quick: the whole batch waits for it.
///
/// It is not called for a token in [`SequenceRequest::stop_tokens`]. The engine keeps it as long as the sequence lives,
/// lends it to the [`super::Sink`], and gives it back at the end.
pub trait Commit: Send {
    /// Takes the next token and says whether it is the last.
    fn commit(&mut self, token: TokenId) -> Verdict;

    /// The tokens that may follow those committed so far; `None` for all. Asked once for each token of a sequence that
    /// is constrained, while the forward pass that gives its logits may be running already.
    fn mask(&mut self) -> Option<TokenMask> {
        None
    }
}

impl<C: Commit + ?Sized> Commit for Box<C> {
    fn commit(&mut self, token: TokenId) -> Verdict {
        (**self).commit(token)
    }

    fn mask(&mut self) -> Option<TokenMask> {
        (**self).mask()
    }
}
