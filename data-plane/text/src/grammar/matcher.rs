//! One answer on its way through a grammar.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::{TokenParser, panic_utils};

use super::ending::EndingState;
use super::{Grammar, GrammarTokens};

/// Tokens that may come next: bit `token % 32` of word `token / 32`, `[vocab_size / 32, rounded up]`.
pub type TokenMask = Arc<[u32]>;

/// Follows one answer. Moves between threads as whole masks are computed elsewhere.
pub struct GrammarMatcher {
    parser: TokenParser,
    tokens: Arc<GrammarTokens>,
    budget: Option<Budget>,
    state: State,
}

/// How many tokens may still come, and what is known of endings.
struct Budget {
    tokens_left: u32,
    ending: EndingState,
    /// Taken, and not yet by `ending`, which has time when the next mask is made.
    behind: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// Nothing may follow but the end.
    Complete,
    /// The grammar got too complex, or a token came that it does not allow. No token may follow.
    Failed,
}

impl GrammarMatcher {
    /// At the beginning of an answer. With `max_tokens` it keeps to a valid ending within so many, the token that ends the
    /// answer counted, if they are enough for any.
    pub fn new(grammar: Grammar, max_tokens: Option<u32>) -> Self {
        let Grammar { parser, ending, tokens } = grammar;
        let budget = max_tokens.zip(ending).map(|(tokens_left, ending)| Budget {
            tokens_left,
            ending: EndingState::new(ending, Arc::clone(&tokens)),
            behind: Vec::new(),
        });
        Self { parser, tokens, budget, state: State::Running }
    }

    /// The tokens that may come next: at least one, unless the grammar has got too complex to be followed.
    pub fn mask(&mut self) -> TokenMask {
        if self.state == State::Running {
            match caught(|| self.parser.compute_mask()) {
                Ok(allowed) => {
                    let mut mask = self.empty_mask();
                    mask.iter_mut().zip(allowed.as_slice()).for_each(|(word, allowed)| *word = *allowed);
                    self.keep_to_budget(&mut mask);
                    return mask.into();
                }
                Err(_) => self.state = State::Failed,
            }
        }
        let mut mask = self.empty_mask();
        if self.state == State::Complete {
            self.tokens.eos_ids().iter().for_each(|eos| mask[(eos / 32) as usize] |= 1 << (eos % 32));
        }
        mask.into()
    }

    /// Takes the token that came. One that the mask did not allow leaves the matcher without any that may follow.
    pub fn consume(&mut self, token: u32) {
        if let Some(budget) = &mut self.budget {
            budget.tokens_left = budget.tokens_left.saturating_sub(1);
        }
        if self.state != State::Running {
            return;
        }
        if self.tokens.eos_ids().contains(&token) {
            self.state = if self.may_end() { State::Complete } else { State::Failed };
            return;
        }
        let consumed = caught(|| {
            self.parser.consume_token(token)?;
            self.parser.check_stop()
        });
        match consumed {
            Ok(false) => {}
            Ok(true) => self.state = State::Complete,
            Err(_) => self.state = State::Failed,
        }
        if let Some(budget) = &mut self.budget {
            budget.behind.push(token);
        }
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        match self.state {
            State::Running => caught(|| Ok(self.parser.is_accepting())).unwrap_or(false),
            State::Complete => true,
            State::Failed => false,
        }
    }

    /// Whether nothing may follow.
    pub fn must_end(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether the grammar can be followed no further.
    pub fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    fn keep_to_budget(&mut self, mask: &mut [u32]) {
        let Some(Budget { tokens_left, ending, behind }) = &mut self.budget else { return };
        // What goes wrong leaves the mask as it was.
        let kept = caught(|| {
            let is_abreast = ending.follow(&mut self.parser, behind.drain(..));
            if is_abreast {
                ending.restrict(&mut self.parser, mask, *tokens_left);
            }
            Ok(is_abreast)
        });
        if !kept.unwrap_or(false) {
            self.budget = None;
        }
    }

    fn empty_mask(&self) -> Vec<u32> {
        vec![0; self.tokens.mask_words()]
    }
}

/// What `llguidance` throws becomes an error, and is not printed: it may hold what users sent.
pub(super) fn caught<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    panic_utils::catch_unwind(AssertUnwindSafe(run))
}

impl fmt::Debug for GrammarMatcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GrammarMatcher").field("state", &self.state).finish_non_exhaustive()
    }
}
