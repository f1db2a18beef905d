//! One answer on its way through a grammar.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::{TokenParser, panic_utils};

use super::Grammar;
use super::ending::EndingState;

/// Tokens that may come next: bit `token % 32` of word `token / 32`, `[vocab_size / 32, rounded up]`.
pub type TokenMask = Arc<[u32]>;

/// As it comes, after a new beginning, and after another with tokens of one byte.
const ATTEMPTS: usize = 3;

/// Follows one answer. Moves between threads as whole masks are computed elsewhere.
///
/// What its lexer remembers is bounded. When that is used up, as by long strings of many tokens, the matcher begins anew with
/// a lexer that remembers nothing and takes the answer so far once more, so that an answer may be of any length.
pub struct GrammarMatcher {
    /// As it was compiled.
    grammar: Grammar,
    parser: TokenParser,
    budget: Option<Budget>,
    taken: Vec<u32>,
    /// Whole masks have taken too much: from then on tokens have one byte.
    is_bytewise: bool,
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
    /// The lexer has used up its memory or its time: the next mask begins anew.
    Exhausted,
    /// Nothing may follow but the end.
    Complete,
    /// The grammar got too complex, or a token came that it does not allow. No token may follow.
    Failed,
}

impl GrammarMatcher {
    /// At the beginning of an answer. With `max_tokens` it keeps to a valid ending within so many, the token that ends the
    /// answer counted, if they are enough for any.
    pub fn new(grammar: Grammar, max_tokens: Option<u32>) -> Self {
        let parser = grammar.parser.deep_clone();
        let ending =
            grammar.ending.clone().map(|ending| EndingState::new(ending, Arc::clone(&grammar.tokens)));
        let budget = max_tokens.zip(ending).map(|(tokens_left, ending)| Budget {
            tokens_left,
            ending,
            behind: Vec::new(),
        });
        Self { grammar, parser, budget, taken: Vec::new(), is_bytewise: false, state: State::Running }
    }

    /// The tokens that may come next: at least one, unless the grammar has got too complex to be followed.
    pub fn mask(&mut self) -> TokenMask {
        for attempt in 0..ATTEMPTS {
            if self.state == State::Exhausted {
                self.begin_anew();
            }
            if self.state != State::Running {
                break;
            }
            self.is_bytewise |= attempt + 1 == ATTEMPTS;
            if let Some(mask) = self.running_mask(attempt > 0) {
                return mask;
            }
        }
        if self.state == State::Exhausted {
            self.state = State::Failed;
        }
        let mut mask = self.empty_mask();
        if self.state == State::Complete {
            self.grammar.tokens.eos_ids().iter().for_each(|eos| mask[(eos / 32) as usize] |= 1 << (eos % 32));
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
        if self.grammar.tokens.eos_ids().contains(&token) {
            self.state = if self.may_end() { State::Complete } else { State::Failed };
            return;
        }
        self.taken.push(token);
        self.state = match caught(|| take(&mut self.parser, token)) {
            Ok(false) => State::Running,
            Ok(true) => State::Complete,
            Err(_) => self.after_error(),
        };
        if let Some(budget) = &mut self.budget {
            budget.behind.push(token);
        }
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        match self.state {
            State::Running => caught(|| Ok(self.parser.is_accepting())).unwrap_or(false),
            State::Complete => true,
            State::Exhausted | State::Failed => false,
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

    /// `None` if the parser is at its end, which the state then tells. What may take long is tried once more after a new
    /// beginning, unless this is that.
    fn running_mask(&mut self, is_second: bool) -> Option<TokenMask> {
        let mut mask = self.empty_mask();
        let tokens = Arc::clone(&self.grammar.tokens);
        let parser = &mut self.parser;
        let allowed = caught(|| match self.is_bytewise {
            true => tokens.byte_mask(parser),
            false => parser.compute_mask(),
        });
        match allowed {
            Ok(allowed) => {
                mask.iter_mut().zip(allowed.as_slice()).for_each(|(word, allowed)| *word = *allowed);
            }
            Err(_) => {
                self.state = self.after_error();
                return None;
            }
        }
        let Some(Budget { tokens_left, ending, behind }) = &mut self.budget else { return Some(mask.into()) };
        let unrestricted = mask.clone();
        let kept = caught(|| {
            tokens.refuel(&mut self.parser);
            let is_abreast = ending.follow(&mut self.parser, behind.drain(..));
            if is_abreast {
                ending.restrict(&mut self.parser, &mut mask, *tokens_left);
            }
            tokens.refuel(&mut self.parser);
            Ok(is_abreast)
        });
        let is_exhausted = is_exhausted(&self.parser);
        if is_exhausted && !is_second {
            self.state = State::Exhausted;
            return None;
        }
        // What goes wrong leaves the mask as it was.
        if is_exhausted || !kept.unwrap_or(false) {
            self.budget = None;
            mask = unrestricted;
        }
        if is_exhausted {
            self.begin_anew();
        }
        Some(mask.into())
    }

    /// From the grammar as it was compiled to where the answer is.
    fn begin_anew(&mut self) {
        let Grammar { parser, ending, tokens } = &self.grammar;
        self.parser = parser.deep_clone();
        self.state = State::Running;
        // Each has the time that it had when it came.
        for token in &self.taken {
            let taken = caught(|| {
                tokens.refuel(&mut self.parser);
                take(&mut self.parser, *token)
            });
            self.state = match taken {
                Ok(false) => continue,
                Ok(true) => State::Complete,
                Err(_) => State::Failed,
            };
        }
        if let (Some(budget), Some(ending)) = (&mut self.budget, ending) {
            budget.ending = EndingState::new(Arc::clone(ending), Arc::clone(tokens));
            budget.behind.clone_from(&self.taken);
        }
    }

    fn after_error(&self) -> State {
        if is_exhausted(&self.parser) { State::Exhausted } else { State::Failed }
    }

    fn empty_mask(&self) -> Vec<u32> {
        vec![0; self.grammar.tokens.mask_words()]
    }
}

/// True if nothing may follow the token.
fn take(parser: &mut TokenParser, token: u32) -> anyhow::Result<bool> {
    parser.consume_token(token)?;
    parser.check_stop()
}

/// Whether the lexer has used up its memory or its time; from there on it only fails.
pub(super) fn is_exhausted(parser: &TokenParser) -> bool {
    caught(|| Ok(parser.parser.lexer_stats().error)).unwrap_or(false)
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
