//! How a lexeme that has begun can be completed in the fewest tokens.
//!
//! Found by a search over the lexer's states for the fewest bytes, which are then cut into the fewest tokens. Once found it
//! is remembered for each state on the way, so that whoever follows it has it shrink by one with every token.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use llguidance::derivre::{NextByte, StateID};
use llguidance::earley::ParserRecognizer;
use llguidance::earley::lexerspec::LexemeIdx;
use toktrie::TokTrie;

use super::rules::NEVER;

/// Of one search; a state takes some 20 microseconds when it is first met.
const MAX_SEARCHED_STATES: usize = 2_000;
/// After so many a search makes do with a state from which the rest is known.
const ENOUGH_SEARCHED_STATES: usize = 32;

/// What is known of completions, by state of the lexer.
#[derive(Debug, Clone, Default)]
pub(super) struct Completions {
    /// The least of each lexeme: its bytes, and those of each of its tokens.
    words: HashMap<LexemeIdx, Arc<Word>>,
    fewest: HashMap<(StateID, LexemeIdx), u32>,
    accepting: HashMap<StateID, Arc<[LexemeIdx]>>,
    possible: HashMap<StateID, Arc<[LexemeIdx]>>,
}

#[derive(Debug)]
struct Word {
    bytes: Vec<u8>,
    token_lengths: Vec<usize>,
    /// Tokens that are known to be needed where these bytes lead, if that is not the end.
    tail: u32,
}

/// What a byte does to the lexer.
pub(super) enum Step {
    Error,
    /// The lexeme goes on.
    Within(StateID),
    /// These lexemes end with the byte.
    Ended(StateID),
    /// These have ended before the byte, which belongs to the next.
    EndedBefore(StateID),
}

pub(super) fn step(lexer: &mut ParserRecognizer<'_>, state: StateID, byte: u8) -> Step {
    let next = lexer.lexer_mut().transition_start_state(state, Some(byte), &None);
    if next.is_dead() {
        let is_accepting = !lexer.lexer_mut().try_lexeme_end(state).is_error();
        if is_accepting { Step::EndedBefore(state) } else { Step::Error }
    } else if next.has_lowest_match() {
        Step::Ended(next)
    } else {
        Step::Within(next)
    }
}

impl Completions {
    /// Finds the least of a lexeme. Tokens it needs; [`NEVER`] if none was found.
    pub(super) fn learn(
        &mut self,
        lexer: &mut ParserRecognizer<'_>,
        trie: &TokTrie,
        lexeme: LexemeIdx,
    ) -> u32 {
        if let Some(word) = self.words.get(&lexeme) {
            return tokens(word);
        }
        let start = start_state(lexer, &[lexeme]);
        let Some(word) = self.search(lexer, trie, start, lexeme).map(Arc::new) else { return NEVER };
        self.words.insert(lexeme, Arc::clone(&word));
        tokens(&word)
    }

    /// Fewest tokens that complete a lexeme which is to begin in this state.
    pub(super) fn fewest_from_start(
        &mut self,
        lexer: &mut ParserRecognizer<'_>,
        trie: &TokTrie,
        start: StateID,
        lexeme: LexemeIdx,
    ) -> u32 {
        if let Some(&fewest) = self.fewest.get(&(start, lexeme)) {
            return fewest;
        }
        match self.words.get(&lexeme).cloned() {
            Some(word) if self.follow(lexer, start, lexeme, &word) => tokens(&word),
            _ => self.fewest_within(lexer, trie, start, lexeme),
        }
    }

    /// Fewest tokens that complete a lexeme in this state.
    pub(super) fn fewest_within(
        &mut self,
        lexer: &mut ParserRecognizer<'_>,
        trie: &TokTrie,
        state: StateID,
        lexeme: LexemeIdx,
    ) -> u32 {
        if let Some(&fewest) = self.fewest.get(&(state, lexeme)) {
            return fewest;
        }
        let fewest = if self.accepting(lexer, state).contains(&lexeme) {
            0
        } else {
            match self.search(lexer, trie, state, lexeme) {
                Some(word) if self.follow(lexer, state, lexeme, &word) => tokens(&word),
                _ => NEVER,
            }
        };
        *self.fewest.entry((state, lexeme)).and_modify(|known| *known = fewest.min(*known)).or_insert(fewest)
    }

    /// Lexemes that are complete in a state.
    pub(super) fn accepting(&mut self, lexer: &mut ParserRecognizer<'_>, state: StateID) -> Arc<[LexemeIdx]> {
        if let Some(known) = self.accepting.get(&state) {
            return Arc::clone(known);
        }
        let is_lazy = state.has_lowest_match();
        let mut accepting = Vec::new();
        if is_lazy || !lexer.lexer_mut().try_lexeme_end(state).is_error() {
            for lexeme in lexer.lexer().possible_lexemes(state).iter().collect::<Vec<_>>() {
                let mut alone = lexer.lexer().lexer_spec().alloc_lexeme_set();
                alone.add(lexeme);
                let alone = lexer.lexer_mut().limit_state_to(state, &alone);
                let is_accepting = match is_lazy {
                    true => alone.has_lowest_match(),
                    false => !alone.is_dead() && !lexer.lexer_mut().try_lexeme_end(alone).is_error(),
                };
                if is_accepting {
                    accepting.push(lexeme);
                }
            }
        }
        let accepting: Arc<[LexemeIdx]> = accepting.into();
        self.accepting.insert(state, Arc::clone(&accepting));
        accepting
    }

    /// Lexemes that a state may become.
    pub(super) fn possible(&mut self, lexer: &mut ParserRecognizer<'_>, state: StateID) -> Arc<[LexemeIdx]> {
        let possible = self.possible.entry(state);
        Arc::clone(possible.or_insert_with(|| lexer.lexer().possible_lexemes(state).iter().collect()))
    }

    /// Goes along a word and remembers what is left of it at the end of each token. False if it does not give the lexeme
    /// there: another lexeme may take its place.
    fn follow(
        &mut self,
        lexer: &mut ParserRecognizer<'_>,
        start: StateID,
        lexeme: LexemeIdx,
        word: &Word,
    ) -> bool {
        let mut states = vec![start];
        let mut state = start;
        let mut is_complete = false;
        let mut bytes = word.bytes.iter();
        for length in &word.token_lengths {
            for byte in bytes.by_ref().take(*length) {
                match step(lexer, state, *byte) {
                    Step::Within(next) if !is_complete => state = next,
                    Step::Ended(next) if !is_complete => (state, is_complete) = (next, true),
                    _ => return false,
                }
            }
            states.push(state);
        }
        if word.tail == 0 && !self.accepting(lexer, state).contains(&lexeme) {
            return false;
        }
        states.pop();
        for (state, left) in states.into_iter().zip((1..=tokens(word)).rev()) {
            self.fewest.entry((state, lexeme)).and_modify(|known| *known = left.min(*known)).or_insert(left);
        }
        true
    }

    /// The fewest bytes that complete a lexeme, in the fewest tokens. If that takes long and the rest is known for a state on
    /// the way, the bytes up to there.
    fn search(
        &mut self,
        lexer: &mut ParserRecognizer<'_>,
        trie: &TokTrie,
        from: StateID,
        lexeme: LexemeIdx,
    ) -> Option<Word> {
        let mut reached = vec![Reached { state: from, byte: 0, before: usize::MAX }];
        let mut seen = HashSet::from([from]);
        let mut known: Option<Word> = None;
        let mut next = 0;
        while let Some(&Reached { state, .. }) = reached.get(next) {
            if next > MAX_SEARCHED_STATES || (next > ENOUGH_SEARCHED_STATES && known.is_some()) {
                break;
            }
            for byte in candidates(lexer, state) {
                let (state, is_end) = match step(lexer, state, byte) {
                    Step::Within(state) => (state, false),
                    Step::Ended(state) => (state, true),
                    Step::Error | Step::EndedBefore(_) => continue,
                };
                if !seen.insert(state) || !lexer.lexer().possible_lexemes(state).contains(lexeme) {
                    continue;
                }
                reached.push(Reached { state, byte, before: next });
                if self.accepting(lexer, state).contains(&lexeme) {
                    return word(trie, &reached, 0);
                }
                let tail = self.fewest.get(&(state, lexeme)).copied().filter(|tail| *tail < NEVER);
                let candidate = tail.and_then(|tail| word(trie, &reached, tail));
                if candidate
                    .as_ref()
                    .is_some_and(|word| known.as_ref().is_none_or(|known| tokens(word) < tokens(known)))
                {
                    known = candidate;
                }
                if is_end {
                    reached.pop();
                }
            }
            next += 1;
        }
        known
    }
}

/// A state that a search has reached.
struct Reached {
    state: StateID,
    /// The byte that led to it from the state at the place `before`; the first has none.
    byte: u8,
    before: usize,
}

/// The bytes to the state reached last.
fn word(trie: &TokTrie, reached: &[Reached], tail: u32) -> Option<Word> {
    let mut place = reached.len() - 1;
    let mut bytes = Vec::new();
    while let Reached { byte, before, .. } = reached[place]
        && before != usize::MAX
    {
        bytes.push(byte);
        place = before;
    }
    bytes.reverse();
    let token_lengths = fewest_tokens(trie, &bytes)?;
    Some(Word { bytes, token_lengths, tail })
}

pub(super) fn start_state(lexer: &mut ParserRecognizer<'_>, lexemes: &[LexemeIdx]) -> StateID {
    let mut set = lexer.lexer().lexer_spec().alloc_lexeme_set();
    lexemes.iter().for_each(|lexeme| set.add(*lexeme));
    lexer.lexer_mut().start_state(&set)
}

fn tokens(word: &Word) -> u32 {
    u32::try_from(word.token_lengths.len()).map_or(NEVER, |tokens| (tokens + word.tail).min(NEVER))
}

/// Bytes worth trying: what people read first, so that an ending is made of that where it can be.
fn candidates(lexer: &mut ParserRecognizer<'_>, state: StateID) -> impl Iterator<Item = u8> + use<> {
    let forced = match lexer.lexer_mut().next_byte(state) {
        NextByte::ForcedByte(byte) => Some(Some(byte)),
        NextByte::ForcedEOI | NextByte::Dead => Some(None),
        NextByte::SomeBytes0 | NextByte::SomeBytes1(_) | NextByte::SomeBytes2(_) => None,
    };
    let all = forced.is_none().then(|| (b'"'..=0x7E).chain([b'!', b' ']).chain(0x7F..=0xFF).chain(0..=0x1F));
    forced.flatten().into_iter().chain(all.into_iter().flatten())
}

/// Lengths of the fewest tokens that `bytes` can be cut into.
fn fewest_tokens(trie: &TokTrie, bytes: &[u8]) -> Option<Vec<usize>> {
    // By place: how many tokens from there on, and the length of the first.
    let mut best: Vec<Option<(u32, usize)>> = vec![None; bytes.len() + 1];
    best[bytes.len()] = Some((0, 0));
    for place in (0..bytes.len()).rev() {
        let mut node = trie.root();
        for (length, byte) in (1..).zip(&bytes[place..]) {
            let Some(child) = trie.child_at_byte(node, *byte) else { break };
            node = child;
            if let (Some(_), Some((count, _))) = (node.token_id(), best[place + length])
                && best[place].is_none_or(|(known, _)| count < known)
            {
                best[place] = Some((count + 1, length));
            }
        }
    }
    let mut lengths = Vec::new();
    let mut place = 0;
    while place < bytes.len() {
        let (_, length) = best[place]?;
        lengths.push(length);
        place += length;
    }
    Some(lengths)
}
