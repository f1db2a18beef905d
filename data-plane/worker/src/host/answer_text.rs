//! Detokenizer and stop matcher of one attempt. Where there are stop strings they run inside the engine's commit, so that
//! nothing past one is computed into the answer, delivered or counted; else the text is made where it is said.

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
    /// Tokens that were taken and whose text is not made yet.
    unread: usize,
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
        Self { detokenizer, matcher, pending: String::new(), unread: 0, is_stopped: false }
    }

    /// Takes the next token. True if it completed a stop string.
    #[inline]
    pub(super) fn push(&mut self, token: TokenId) -> bool {
        if self.matcher.is_idle() {
            self.unread += 1;
            return false;
        }
        let step = self.matcher.push(self.detokenizer.push(token));
        self.pending.push_str(step.emit);
        self.is_stopped |= step.matched;
        self.is_stopped
    }

    /// What may be shown since the last call of [`Self::taken`]. `tokens` begin with those that were taken since.
    #[inline]
    pub(super) fn pending(&mut self, tokens: &[TokenId]) -> &str {
        match &tokens[..std::mem::take(&mut self.unread)] {
            // Nearly always, and shown from where it lies.
            &[token] => return self.detokenizer.push(token),
            unread => {
                for &token in unread {
                    self.pending.push_str(self.detokenizer.push(token));
                }
            }
        }
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
