//! The rules of a compiled grammar, and how many tokens the least of what each symbol derives needs.
//!
//! `llguidance` keeps its Earley items to itself but shows its rules, from which `chart.rs` makes its own.

use std::collections::HashMap;

use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{CGrammar, CSymIdx};

/// More than any answer has tokens; sums of it stay below `u32::MAX`.
pub(super) const NEVER: u32 = 1 << 24;
/// Ends the right-hand side of a rule.
pub(super) const END: u32 = 0;

/// Rules in one array of elements. A dotted rule is the place of the element behind the dot.
#[derive(Debug)]
pub(super) struct Rules {
    elements: Vec<Element>,
    symbols: Vec<Symbol>,
    start: u32,
}

#[derive(Debug, Clone, Copy)]
struct Element {
    /// [`END`] at the end of a rule.
    symbol: u32,
    /// What the rule derives.
    derived: u32,
    /// Fewest tokens of this element and those behind it in its rule.
    rest: u32,
}

#[derive(Debug)]
pub(super) struct Symbol {
    /// Set for a terminal.
    pub(super) lexeme: Option<LexemeIdx>,
    /// First elements of its rules that are not empty.
    pub(super) rules: Vec<u32>,
    pub(super) is_nullable: bool,
    fewest: u32,
}

impl Rules {
    /// `None` for grammars with parameters, stop expressions, token limits or control tokens: what is counted here does
    /// not know of those.
    pub(super) fn of(grammar: &CGrammar) -> Option<Self> {
        let lexer = grammar.lexer_spec();
        if grammar.parametric() || lexer.has_stop || lexer.has_max_tokens || lexer.special_token_rx.is_some()
        {
            return None;
        }
        let end = Symbol { lexeme: None, rules: Vec::new(), is_nullable: false, fewest: 0 };
        let mut this = Self { elements: Vec::new(), symbols: vec![end], start: 1 };
        let mut numbers = HashMap::new();
        let mut found = vec![grammar.start()];
        number(&mut numbers, grammar.start());
        let mut next = 0;
        while let Some(&symbol) = found.get(next) {
            next += 1;
            let data = grammar.sym_data(symbol);
            let derived = number(&mut numbers, symbol);
            let mut rules = Vec::new();
            for &rule in grammar.rules_of(symbol) {
                rules.push(u32::try_from(this.elements.len()).ok()?);
                for &element in grammar.rule_rhs(rule).0 {
                    let known = numbers.len();
                    let symbol = number(&mut numbers, element);
                    if numbers.len() > known {
                        found.push(element);
                    }
                    this.elements.push(Element { symbol, derived, rest: NEVER });
                }
                this.elements.push(Element { symbol: END, derived, rest: 0 });
            }
            let (lexeme, is_nullable) = (data.lexeme, data.is_nullable);
            this.symbols.push(Symbol { lexeme, rules, is_nullable, fewest: NEVER });
        }
        Some(this)
    }

    /// Every terminal's lexeme.
    pub(super) fn lexemes(&self) -> impl Iterator<Item = LexemeIdx> {
        self.symbols.iter().filter_map(|symbol| symbol.lexeme)
    }

    /// Counts what every symbol needs at the least, from what each lexeme needs.
    pub(super) fn count(&mut self, lexeme_tokens: impl Fn(LexemeIdx) -> u32) {
        for symbol in &mut self.symbols[1..] {
            symbol.fewest = match symbol.lexeme {
                Some(lexeme) => lexeme_tokens(lexeme),
                None if symbol.is_nullable => 0,
                None => NEVER,
            };
        }
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            for index in (0..self.elements.len()).rev() {
                let Element { symbol, .. } = self.elements[index];
                if symbol != END {
                    let rest = self.symbols[symbol as usize].fewest + self.elements[index + 1].rest;
                    self.elements[index].rest = rest.min(NEVER);
                }
            }
            for symbol in &mut self.symbols {
                let rules = symbol.rules.iter().map(|rule| self.elements[*rule as usize].rest);
                let fewest = rules.min().unwrap_or(NEVER);
                has_changed |= fewest < symbol.fewest;
                symbol.fewest = fewest.min(symbol.fewest);
            }
        }
    }

    pub(super) fn start(&self) -> u32 {
        self.start
    }

    pub(super) fn num_symbols(&self) -> usize {
        self.symbols.len()
    }

    pub(super) fn symbol(&self, symbol: u32) -> &Symbol {
        &self.symbols[symbol as usize]
    }

    /// The symbol behind a dot.
    pub(super) fn behind(&self, dot: u32) -> u32 {
        self.elements[dot as usize].symbol
    }

    pub(super) fn derived(&self, dot: u32) -> u32 {
        self.elements[dot as usize].derived
    }

    /// Fewest tokens of what is behind a dot.
    pub(super) fn rest(&self, dot: u32) -> u32 {
        self.elements[dot as usize].rest
    }

    /// The most that any rule needs at the least, of those that can be used at all.
    pub(super) fn longest_rule(&self) -> u32 {
        let needed = self.elements.iter().map(|element| element.rest).filter(|rest| *rest < NEVER);
        needed.max().unwrap_or(0)
    }
}

/// The number of a symbol, by the order in which they were met, from 1.
fn number(numbers: &mut HashMap<CSymIdx, u32>, symbol: CSymIdx) -> u32 {
    let next = u32::try_from(numbers.len() + 1).unwrap_or(u32::MAX);
    *numbers.entry(symbol).or_insert(next)
}
