//! Keeps a valid ending within reach: of the tokens that a grammar allows, those after which what is left of the budget is
//! enough for a shortest ending.
//!
//! So an answer goes on as it likes until it comes near its budget. From there on fewer and fewer tokens are left, in the
//! end only those of a shortest ending: closing quotes and brackets, properties that are required, items and characters up
//! to their least number. It works out because a shortest ending shrinks by one with each of its tokens.
//!
//! Looking at every token that is allowed takes longer than the mask itself, so it is not done as long as the budget is far
//! away, and within a string only for the tokens that may leave it if that is enough.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;

use super::GrammarTokens;
use super::chart::{Chart, Context, Position};
use super::completion::{Completions, Step, step};
use super::rules::{NEVER, Rules};
use super::tokens::{MAX_PLAIN_BYTES, is_plain};

/// How many rules one token may begin that it does not end; a few tokens hold two or three opening brackets.
const RULES_IN_A_TOKEN: u32 = 4;
/// Room for what a token may add beside that: the rest of a character or an escape.
const MARGIN: u32 = 16;
/// More allowed tokens than that are not looked at one by one if it can be avoided.
const MANY_TOKENS: u32 = 1_000;
/// States of the lexer that plain tokens may lead to: one, or one more for each character of a string whose length is
/// bounded.
const MAX_STRING_STATES: usize = 400;

/// What is known of endings of a grammar, at the beginning of an answer.
#[derive(Debug)]
pub(super) struct Ending {
    rules: Rules,
    completions: Completions,
    chart: Chart,
    shortest_answer: u32,
    /// With more tokens left than a shortest ending and this, no token can spend too many.
    near: u32,
}

/// The same, as an answer goes on.
#[derive(Debug)]
pub(super) struct EndingState {
    known: Arc<Ending>,
    tokens: Arc<GrammarTokens>,
    completions: Completions,
    chart: Chart,
    /// Of states in strings: where one more plain byte leads; `None` if it may lead out.
    plain_steps: HashMap<StateID, Option<Arc<[StateID]>>>,
}

impl Ending {
    /// `None` where endings of such a grammar cannot be counted.
    pub(super) fn of(parser: &mut TokenParser, tokens: &GrammarTokens) -> Option<Self> {
        let mut rules = Rules::of(parser.parser.grammar())?;
        let mut completions = Completions::default();
        parser.parser.with_recognizer(|lexer| {
            let lexemes: Vec<_> = rules.lexemes().collect();
            let trie = tokens.trie();
            let needs: HashMap<_, _> =
                lexemes.iter().map(|lexeme| (*lexeme, completions.learn(lexer, trie, *lexeme))).collect();
            rules.count(|lexeme| needs[&lexeme]);
            let mut context = Context { rules: &rules, trie, completions: &mut completions, lexer };
            let mut chart = Chart::new(&mut context)?;
            let shortest_answer = chart.fewest(&mut context, chart.position());
            let near = RULES_IN_A_TOKEN * rules.longest_rule() + MARGIN;
            let is_known = shortest_answer < NEVER;
            is_known.then_some(Self { rules, completions, chart, shortest_answer, near })
        })
    }

    pub(super) fn shortest_answer(&self) -> u32 {
        self.shortest_answer
    }
}

impl EndingState {
    pub(super) fn new(known: Arc<Ending>, tokens: Arc<GrammarTokens>) -> Self {
        let (completions, chart) = (known.completions.clone(), known.chart.clone());
        Self { known, tokens, completions, chart, plain_steps: HashMap::new() }
    }

    /// Takes tokens that the parser has taken. False if the two disagree: nothing is known of endings then.
    pub(super) fn follow(&mut self, parser: &mut TokenParser, taken: impl Iterator<Item = u32>) -> bool {
        let Self { known, tokens, completions, chart, .. } = self;
        parser.parser.with_recognizer(|lexer| {
            let mut context = Context { rules: &known.rules, trie: tokens.trie(), completions, lexer };
            for token in taken {
                if !tokens.bytes(token).iter().all(|byte| chart.push(&mut context, *byte)) {
                    return false;
                }
                chart.settle();
            }
            chart.position().lexer == lexer.lexer_state()
        })
    }

    /// Takes the tokens out of a mask after which no ending fits into what is left of `tokens_left`. If that were all of
    /// them, those after which the least is missing stay.
    pub(super) fn restrict(&mut self, parser: &mut TokenParser, mask: &mut [u32], tokens_left: u32) {
        let Self { known, tokens, completions, chart, plain_steps } = self;
        parser.parser.with_recognizer(|lexer| {
            let mut context = Context { rules: &known.rules, trie: tokens.trie(), completions, lexer };
            let now = chart.position();
            if chart.fewest(&mut context, now).saturating_add(known.near) < tokens_left {
                return;
            }
            let mark = chart.mark();
            let mut kept = Kept::new(mask, tokens.eos_ids(), tokens_left.saturating_sub(1));
            let is_large = mask.iter().map(|word| word.count_ones()).sum::<u32>() > MANY_TOKENS;
            let string = (is_large && now.is_within_lexeme)
                .then(|| plain_states(plain_steps, context.lexer, now.lexer))
                .flatten()
                .and_then(|states| {
                    let mut fewest =
                        states.map(|lexer| chart.fewest(&mut context, Position { lexer, ..now }));
                    let is_enough = fewest.next()? <= kept.most;
                    fewest.all(|fewest| (fewest <= kept.most) == is_enough).then_some(is_enough)
                });
            let plain = mask.iter().zip(tokens.plain()).map(|(word, plain)| word & plain);
            let others = mask.iter().zip(tokens.plain()).map(|(word, plain)| word & !plain);
            let looked_at =
                if string.is_some() { tokens.sorted(others) } else { tokens.sorted(mask.iter().copied()) };
            if string == Some(true) {
                kept.keep_all(plain.clone());
            }
            walk(&looked_at, tokens, chart, &mut context, &mut kept);
            if string == Some(false) && !kept.has_any {
                walk(&tokens.sorted(plain), tokens, chart, &mut context, &mut kept);
            }
            chart.forget(mark);
            kept.take(mask);
        });
    }
}

/// Which tokens of a mask stay.
struct Kept {
    words: Vec<u32>,
    /// An ending may have so many tokens.
    most: u32,
    /// If no token is good enough: the best ones.
    best: Vec<u32>,
    least: u32,
    has_any: bool,
}

impl Kept {
    /// The tokens that end an answer may always come where they are allowed.
    fn new(mask: &[u32], eos_ids: &[u32], most: u32) -> Self {
        let mut this =
            Self { words: vec![0; mask.len()], most, best: Vec::new(), least: NEVER, has_any: false };
        let is_allowed =
            |token: &u32| mask.get((token / 32) as usize).is_some_and(|word| word >> (token % 32) & 1 == 1);
        eos_ids.iter().filter(|token| is_allowed(token)).for_each(|token| this.keep(*token, 0));
        this
    }

    fn keep(&mut self, token: u32, fewest: u32) {
        if fewest <= self.most {
            self.words[(token / 32) as usize] |= 1 << (token % 32);
            self.has_any = true;
        } else if !self.has_any && fewest <= self.least && fewest < NEVER {
            if fewest < self.least {
                self.best.clear();
            }
            self.least = fewest;
            self.best.push(token);
        }
    }

    fn keep_all(&mut self, words: impl Iterator<Item = u32>) {
        for (kept, word) in self.words.iter_mut().zip(words) {
            *kept |= word;
            self.has_any |= word != 0;
        }
    }

    fn take(mut self, mask: &mut [u32]) {
        if !self.has_any {
            self.best.iter().for_each(|token| self.words[(token / 32) as usize] |= 1 << (token % 32));
            self.has_any = !self.best.is_empty();
        }
        if self.has_any {
            mask.copy_from_slice(&self.words);
        }
    }
}

/// Tries sorted tokens, each from what it has in common with the one before.
fn walk(
    sorted: &[u32],
    tokens: &GrammarTokens,
    chart: &mut Chart,
    context: &mut Context<'_, '_>,
    kept: &mut Kept,
) {
    let mut before: &[u8] = &[];
    for token in sorted {
        let bytes = tokens.bytes(*token);
        let common = bytes.iter().zip(before).take_while(|(left, right)| left == right).count();
        before = bytes;
        chart.pop_to(common.min(chart.depth()));
        // Else the byte behind has failed before.
        if chart.depth() == common && bytes[common..].iter().all(|byte| chart.push(context, *byte)) {
            let fewest = chart.fewest(context, chart.position());
            kept.keep(*token, fewest);
        }
    }
    chart.pop_to(0);
}

/// The states that plain tokens lead to, if they are not too many and no lexeme ends on the way.
fn plain_states(
    steps: &mut HashMap<StateID, Option<Arc<[StateID]>>>,
    lexer: &mut ParserRecognizer<'_>,
    from: StateID,
) -> Option<impl Iterator<Item = StateID> + use<>> {
    let mut seen = HashSet::new();
    let mut states = vec![from];
    let mut next = 0;
    for _ in 0..MAX_PLAIN_BYTES {
        let end = states.len();
        while next < end {
            let state = states[next];
            next += 1;
            let after = steps.entry(state).or_insert_with(|| plain_step(lexer, state));
            states.extend(after.as_ref()?.iter().filter(|state| seen.insert(**state)));
        }
        if states.len() > MAX_STRING_STATES {
            return None;
        }
    }
    Some(states.into_iter().skip(1))
}

/// The states that a plain character leads to; `None` if a lexeme may end with it.
fn plain_step(lexer: &mut ParserRecognizer<'_>, state: StateID) -> Option<Arc<[StateID]>> {
    let ascii = (0..0x80).filter(|byte| is_plain(*byte));
    let mut after = bytes_step(lexer, &[state], ascii)?;
    // Characters of two, three and four bytes begin so (RFC 3629, section 3).
    for (lead, num_more) in [(0xC2..=0xDF, 1), (0xE0..=0xEF, 2), (0xF0..=0xF4, 3)] {
        let mut within = bytes_step(lexer, &[state], lead)?;
        for _ in 0..num_more {
            within = bytes_step(lexer, &within, 0x80..=0xBF)?;
        }
        after.extend(within);
    }
    Some(after.into())
}

/// The states that one of these bytes leads to from one of these states.
fn bytes_step(
    lexer: &mut ParserRecognizer<'_>,
    from: &[StateID],
    bytes: impl Iterator<Item = u8> + Clone,
) -> Option<Vec<StateID>> {
    let mut after = Vec::new();
    for state in from {
        for byte in bytes.clone() {
            match step(lexer, *state, byte) {
                Step::Within(next) if !after.contains(&next) => after.push(next),
                Step::Within(_) | Step::Error => {}
                Step::Ended(_) | Step::EndedBefore(_) => return None,
            }
        }
    }
    Some(after)
}
