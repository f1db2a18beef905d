//! An Earley chart (Earley 1970) that knows how far it is to the end.
//!
//! A row holds the dotted rules that are possible after a sequence of lexemes. For each symbol behind a dot it also keeps
//! the fewest tokens from behind that symbol to the end of the answer: what is left of the rule, and then of the rules that
//! wait for it, up to the start. What a state of the parser needs is then the least, over the lexemes that may be going
//! on, of completing that lexeme and of what follows it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::earley::lexerspec::LexemeIdx;
use toktrie::TokTrie;

use super::completion::{Completions, Step, start_state, step};
use super::rules::{END, NEVER, Rules};

/// Dotted rules in one row; `llguidance` has the same limit.
const MAX_ROW_ITEMS: usize = 2_000;
/// The token that ends an answer.
const END_TOKEN: u32 = 1;

#[derive(Debug, Clone)]
pub(super) struct Chart {
    items: Vec<Item>,
    rows: Vec<Row>,
    /// After each byte that may yet be taken back.
    positions: Vec<Position>,
    /// Where a row leads when the lexemes complete in a state of the lexer end.
    scanned: HashMap<(u32, StateID), Option<u32>>,
    scratch: Scratch,
}

/// A dotted rule, and the row in which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Item {
    dot: u32,
    origin: u32,
}

#[derive(Debug, Clone)]
struct Row {
    items: Range<usize>,
    /// By symbol behind a dot, ascending: fewest tokens from behind it to the end of the answer.
    behind: Vec<(u32, u32)>,
    /// The same by lexeme.
    behind_lexeme: Vec<(LexemeIdx, u32)>,
    /// Whether the answer may end here.
    accepts: bool,
    /// The lexer at the start of the next lexeme.
    start: StateID,
    /// Fewest tokens to the end of the answer, once asked for.
    fewest: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) row: u32,
    pub(super) lexer: StateID,
    /// A lexeme has begun.
    pub(super) is_within_lexeme: bool,
}

/// By symbol, [`NEVER`] between uses.
#[derive(Debug, Clone)]
struct Scratch {
    behind: Vec<u32>,
}

/// What a chart works with.
pub(super) struct Context<'a, 'p> {
    pub(super) rules: &'a Rules,
    pub(super) trie: &'a TokTrie,
    pub(super) completions: &'a mut Completions,
    pub(super) lexer: &'a mut ParserRecognizer<'p>,
}

impl Chart {
    /// At the beginning of an answer.
    pub(super) fn new(context: &mut Context<'_, '_>) -> Option<Self> {
        let rules = context.rules;
        let mut this = Self {
            items: Vec::new(),
            rows: Vec::new(),
            positions: Vec::new(),
            scanned: HashMap::new(),
            scratch: Scratch { behind: vec![NEVER; rules.num_symbols()] },
        };
        this.items.extend(rules.symbol(rules.start()).rules.iter().map(|&dot| Item { dot, origin: 0 }));
        let lexer = context.lexer.lexer_state();
        let row = this.close(context, 0)?;
        this.rows.push(Row { start: lexer, ..row });
        this.positions.push(Position { row: 0, lexer, is_within_lexeme: false });
        Some(this)
    }

    pub(super) fn position(&self) -> Position {
        self.positions[self.positions.len() - 1]
    }

    /// Takes a byte; false if none of what is possible has it.
    pub(super) fn push(&mut self, context: &mut Context<'_, '_>, byte: u8) -> bool {
        let Position { row, lexer, .. } = self.position();
        let position = match step(context.lexer, lexer, byte) {
            Step::Error => None,
            Step::Within(lexer) => Some(Position { row, lexer, is_within_lexeme: true }),
            Step::Ended(state) => self.scan(context, row, state).map(|row| self.at_start(row)),
            Step::EndedBefore(state) => {
                self.scan(context, row, state).and_then(|row| self.begin(context, row, byte))
            }
        };
        self.positions.extend(position);
        position.is_some()
    }

    /// Takes back all bytes but the first `keep` since the last [`Self::settle`].
    pub(super) fn pop_to(&mut self, keep: usize) {
        self.positions.truncate(keep + 1);
    }

    /// Bytes that may be taken back.
    pub(super) fn depth(&self) -> usize {
        self.positions.len() - 1
    }

    /// How much of the chart there is now.
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.rows.len(), self.items.len())
    }

    /// Forgets what was only tried since the mark.
    pub(super) fn forget(&mut self, (rows, items): (usize, usize)) {
        self.rows.truncate(rows);
        self.items.truncate(items);
        self.scanned.clear();
    }

    /// No byte so far will be taken back.
    pub(super) fn settle(&mut self) {
        self.positions.drain(..self.positions.len() - 1);
        self.scanned.clear();
    }

    /// Fewest tokens to the end of the answer, [`NEVER`] if none is known.
    pub(super) fn fewest(&mut self, context: &mut Context<'_, '_>, position: Position) -> u32 {
        if !position.is_within_lexeme {
            return self.fewest_from_row(context, position.row);
        }
        let mut fewest = NEVER;
        for lexeme in context.completions.possible(context.lexer, position.lexer).iter() {
            let behind = if is_skip(context, *lexeme) {
                self.fewest_from_row(context, position.row)
            } else {
                self.behind_lexeme(position.row, *lexeme)
            };
            if behind < fewest {
                let Context { trie, completions, lexer, .. } = context;
                fewest = fewest.min(behind + completions.fewest_within(lexer, trie, position.lexer, *lexeme));
            }
        }
        fewest
    }

    fn fewest_from_row(&mut self, context: &mut Context<'_, '_>, row: u32) -> u32 {
        let Row { accepts, start, fewest, ref behind_lexeme, .. } = self.rows[row as usize];
        if let Some(fewest) = fewest {
            return fewest;
        }
        let mut fewest = match (accepts, behind_lexeme.is_empty()) {
            (true, true) => 0,
            (true, false) => END_TOKEN,
            (false, _) => NEVER,
        };
        for &(lexeme, behind) in behind_lexeme {
            if behind < fewest {
                let Context { trie, completions, lexer, .. } = context;
                fewest = fewest.min(behind + completions.fewest_from_start(lexer, trie, start, lexeme));
            }
        }
        self.rows[row as usize].fewest = Some(fewest);
        fewest
    }

    fn behind_lexeme(&self, row: u32, lexeme: LexemeIdx) -> u32 {
        let behind = self.rows[row as usize].behind_lexeme.iter();
        behind.filter(|(known, _)| *known == lexeme).map(|(_, tokens)| *tokens).min().unwrap_or(NEVER)
    }

    fn at_start(&self, row: u32) -> Position {
        Position { row, lexer: self.rows[row as usize].start, is_within_lexeme: false }
    }

    /// The first byte of a row's next lexeme, which may be all of it.
    fn begin(&mut self, context: &mut Context<'_, '_>, row: u32, byte: u8) -> Option<Position> {
        let start = self.rows[row as usize].start;
        let lexer = context.lexer.lexer_mut().transition_start_state(start, Some(byte), &None);
        if lexer.is_dead() {
            return None;
        }
        if context.lexer.lexer_mut().check_for_single_byte_lexeme(lexer, byte).is_some() {
            return self.scan(context, row, lexer).map(|row| self.at_start(row));
        }
        Some(Position { row, lexer, is_within_lexeme: true })
    }

    /// The row after the lexemes that are complete in a state of the lexer.
    fn scan(&mut self, context: &mut Context<'_, '_>, row: u32, state: StateID) -> Option<u32> {
        if let Some(known) = self.scanned.get(&(row, state)) {
            return *known;
        }
        let lexemes = context.completions.accepting(context.lexer, state);
        let scanned = match lexemes.iter().find(|lexeme| is_skip(context, **lexeme)) {
            Some(skip) => Some(self.without_skip(context, row, *skip)),
            None => self.after(context, row, &lexemes),
        };
        let next = scanned.map(|row| {
            self.rows.push(row);
            u32::try_from(self.rows.len() - 1).expect("far fewer rows than bytes in memory")
        });
        self.scanned.insert((row, state), next);
        next
    }

    /// The same row once more, after white space that may not be repeated.
    fn without_skip(&mut self, context: &mut Context<'_, '_>, row: u32, skip: LexemeIdx) -> Row {
        let row = self.rows[row as usize].clone();
        let mut possible = context.lexer.lexer().possible_lexemes(row.start).clone();
        possible.remove(skip);
        Row { start: context.lexer.lexer_mut().start_state(&possible), ..row }
    }

    fn after(&mut self, context: &mut Context<'_, '_>, row: u32, lexemes: &[LexemeIdx]) -> Option<Row> {
        let first = self.items.len();
        for index in self.rows[row as usize].items.clone() {
            let item = self.items[index];
            let symbol = context.rules.symbol(context.rules.behind(item.dot));
            if symbol.lexeme.is_some_and(|lexeme| lexemes.contains(&lexeme)) {
                self.items.push(Item { dot: item.dot + 1, ..item });
            }
        }
        let row = if self.items.len() > first { self.close(context, first) } else { None };
        if row.is_none() {
            self.items.truncate(first);
        }
        row
    }

    /// Completes a row from the items that begin it, those from `first` on.
    fn close(&mut self, context: &mut Context<'_, '_>, first: usize) -> Option<Row> {
        let rules = context.rules;
        let row = u32::try_from(self.rows.len()).ok()?;
        let mut seen = self.items[first..].iter().copied().collect::<HashSet<_>>();
        let mut accepts = row == 0 && rules.symbol(rules.start()).is_nullable;
        let mut next = first;
        while let Some(&item) = self.items.get(next) {
            next += 1;
            let symbol = rules.behind(item.dot);
            if symbol == END {
                let derived = rules.derived(item.dot);
                accepts |= derived == rules.start() && item.origin == 0;
                if item.origin != row {
                    for index in self.rows[item.origin as usize].items.clone() {
                        let waiting = self.items[index];
                        if rules.behind(waiting.dot) == derived {
                            self.add(&mut seen, Item { dot: waiting.dot + 1, ..waiting });
                        }
                    }
                }
            } else {
                let symbol = rules.symbol(symbol);
                for &dot in &symbol.rules {
                    self.add(&mut seen, Item { dot, origin: row });
                }
                if symbol.is_nullable {
                    self.add(&mut seen, Item { dot: item.dot + 1, ..item });
                }
            }
            if self.items.len() - first > MAX_ROW_ITEMS {
                return None;
            }
        }
        Some(self.measured(context, row, first..self.items.len(), accepts))
    }

    fn add(&mut self, seen: &mut HashSet<Item>, item: Item) {
        if seen.insert(item) {
            self.items.push(item);
        }
    }

    /// Counts what is behind every symbol of a row: the least fixed point, since rules that began here wait for each other.
    fn measured(
        &mut self,
        context: &mut Context<'_, '_>,
        row: u32,
        items: Range<usize>,
        accepts: bool,
    ) -> Row {
        let rules = context.rules;
        let mut behind = std::mem::take(&mut self.scratch.behind);
        // Every lexeme may come, also one from behind which no ending is known.
        let waiting = self.items[items.clone()].iter().map(|item| rules.behind(item.dot));
        let mut symbols: Vec<u32> = waiting.filter(|symbol| rules.symbol(*symbol).lexeme.is_some()).collect();
        if row == 0 {
            behind[rules.start() as usize] = END_TOKEN;
        }
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for item in &self.items[items.clone()] {
                let symbol = rules.behind(item.dot);
                if symbol == END {
                    continue;
                }
                let derived = rules.derived(item.dot);
                let outside = match item.origin == row {
                    true => behind[derived as usize],
                    false => lookup(&self.rows[item.origin as usize].behind, derived),
                };
                let fewest = (rules.rest(item.dot + 1) + outside).min(NEVER);
                if fewest < behind[symbol as usize] {
                    behind[symbol as usize] = fewest;
                    symbols.push(symbol);
                    has_changed = true;
                }
            }
        }
        symbols.push(rules.start());
        symbols.sort_unstable();
        symbols.dedup();
        let measured = symbols.iter().map(|symbol| (*symbol, behind[*symbol as usize])).collect::<Vec<_>>();
        symbols.iter().for_each(|symbol| behind[*symbol as usize] = NEVER);
        self.scratch.behind = behind;
        let lexeme = |(symbol, tokens): &(u32, u32)| Some((rules.symbol(*symbol).lexeme?, *tokens));
        let behind_lexeme: Vec<_> = measured.iter().filter_map(lexeme).collect();
        let start = allowed_start(context, &behind_lexeme);
        Row { items, behind: measured, behind_lexeme, accepts, start, fewest: None }
    }
}

/// The lexer's state where these lexemes may begin, or white space of their grammars.
fn allowed_start(context: &mut Context<'_, '_>, lexemes: &[(LexemeIdx, u32)]) -> StateID {
    let spec = context.lexer.lexer().lexer_spec();
    let skips = lexemes.iter().map(|(lexeme, _)| spec.skip_id(spec.lexeme_spec(*lexeme).class()));
    let allowed: Vec<_> = lexemes.iter().map(|(lexeme, _)| *lexeme).chain(skips).collect();
    start_state(context.lexer, &allowed)
}

fn is_skip(context: &Context<'_, '_>, lexeme: LexemeIdx) -> bool {
    context.lexer.lexer().lexer_spec().skip_by_class.contains(&lexeme)
}

fn lookup(sorted: &[(u32, u32)], symbol: u32) -> u32 {
    sorted.binary_search_by_key(&symbol, |entry| entry.0).map_or(NEVER, |index| sorted[index].1)
}
