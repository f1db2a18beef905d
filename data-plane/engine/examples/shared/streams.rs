//! The streams of a bench: prompts of any length that share nothing, and answers that no text ends.

use weir_engine::{Commit, TokenId, Verdict};

/// Takes every token: there is no text.
pub(crate) struct TakeAll;

impl Commit for TakeAll {
    fn commit(&mut self, _: TokenId) -> Verdict {
        Verdict::Continue
    }
}

/// A prompt of `prompt_tokens` that shares no block with those of other streams, so that nothing comes from the prefix
/// cache.
pub(crate) fn prompt(stream: u32, prompt_tokens: u32, vocab_size: u32) -> Vec<TokenId> {
    (0..prompt_tokens).map(|position| (stream * 7919 + position * 104_729 + 17) % vocab_size).collect()
}
