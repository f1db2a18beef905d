//! Detokenizer and stop matcher, run inside the engine's commit, so that nothing past a stop string is computed into
//! the answer, delivered or counted.

use std::sync::Arc;

use parking_lot::Mutex;
use weir_engine::{Commit, TokenId, Verdict};
use weir_text::{Detokenizer, StopMatcher, TextModel};

#[derive(Debug)]
struct Text {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// Shown, but not taken yet.
    pending: String,
    matched: bool,
}

/// The engine's end: dropped with its sequence.
#[derive(Debug)]
pub(crate) struct TextCommit(Arc<Mutex<Text>>);

/// The worker's end: takes what may be shown. The lock is never contended: both ends live on the owner thread.
#[derive(Debug)]
pub(crate) struct ShownText(Arc<Mutex<Text>>);

/// Both ends for one sequence that continues `prompt`.
pub(crate) fn text_commit(
    model: Arc<TextModel>,
    prompt: &[TokenId],
    matcher: StopMatcher,
) -> (TextCommit, ShownText) {
    let detokenizer = Detokenizer::continuing(model, prompt);
    let text = Text { detokenizer, matcher, pending: String::new(), matched: false };
    let shared = Arc::new(Mutex::new(text));
    (TextCommit(shared.clone()), ShownText(shared))
}

impl Commit for TextCommit {
    fn commit(&mut self, token: TokenId) -> Verdict {
        let text = &mut *self.0.lock();
        let step = text.matcher.push(text.detokenizer.push(token));
        text.pending.push_str(step.emit);
        text.matched |= step.matched;
        if text.matched { Verdict::Stop } else { Verdict::Continue }
    }
}

impl ShownText {
    /// Gives what may be shown since the last call: whole characters only.
    pub(crate) fn take(&self, give: impl FnOnce(&str)) {
        let text = &mut *self.0.lock();
        give(&text.pending);
        text.pending.clear();
    }

    /// The rest at the end of the sequence: an unfinished character, and what was held back as the possible start
    /// of a stop string. Nothing after a stop string.
    pub(crate) fn finish(&self) -> String {
        let text = &mut *self.0.lock();
        if !text.matched {
            let step = text.matcher.push(text.detokenizer.finish());
            text.pending.push_str(step.emit);
            if !step.matched {
                text.pending.push_str(text.matcher.finish());
            }
        }
        std::mem::take(&mut text.pending)
    }
}
