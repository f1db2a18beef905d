//! Detokenizer and stop matcher of one attempt. They run inside the engine's commit, so that nothing past a stop string
//! is computed into the answer, delivered or counted.

use std::sync::Arc;

use weir_engine::TokenId;
use weir_text::{Detokenizer, StopMatcher, TextModel};

/// The text of an answer as it grows.
#[derive(Debug)]
pub(super) struct AnswerText {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// May be shown, and is not taken yet: whole characters only.
    pending: String,
    is_stopped: bool,
}

impl AnswerText {
    /// For what continues `prompt`. `shown` are control tokens that come as their names.
    pub(super) fn new(
        model: Arc<TextModel>,
        prompt: &[TokenId],
        matcher: StopMatcher,
        shown: Vec<TokenId>,
    ) -> Self {
        let detokenizer = Detokenizer::continuing(model, prompt).showing(shown);
        Self { detokenizer, matcher, pending: String::new(), is_stopped: false }
    }

    /// Takes the next token. True if it completed a stop string.
    pub(super) fn push(&mut self, token: TokenId) -> bool {
        let step = self.matcher.push(self.detokenizer.push(token));
        self.pending.push_str(step.emit);
        self.is_stopped |= step.matched;
        self.is_stopped
    }

    /// What may be shown since the last call of [`Self::taken`].
    pub(super) fn pending(&self) -> &str {
        &self.pending
    }

    /// What was pending has been shown.
    pub(super) fn taken(&mut self) {
        self.pending.clear();
    }

    /// Adds the rest at the end of the sequence to what is pending: an unfinished character, and what was held back as
    /// the possible start of a stop string. Nothing after a stop string.
    pub(super) fn finish(&mut self) {
        if !self.is_stopped {
            let step = self.matcher.push(self.detokenizer.finish());
            self.pending.push_str(step.emit);
            if !step.matched {
                self.pending.push_str(self.matcher.finish());
            }
        }
    }
}
