//! A walk through a grammar: one answer of random tokens.

use weir_text::{Grammar, GrammarMatcher, TextModel};

use super::draw::{Random, draw};

/// Where a walk came to.
pub(super) struct Walk {
    pub(super) text: String,
    pub(super) num_tokens: u32,
    /// The grammar was followed to its end.
    pub(super) is_complete: bool,
}

/// At most `max_tokens`; with a budget the matcher knows of it.
pub(super) fn walk(
    model: &TextModel,
    grammar: &Grammar,
    max_tokens: u32,
    has_budget: bool,
    random: &mut Random,
) -> Walk {
    let mut matcher = GrammarMatcher::new(grammar.clone(), has_budget.then_some(max_tokens));
    let mut tokens = Vec::new();
    while tokens.len() < max_tokens as usize && !matcher.must_end() {
        let mask = matcher.mask();
        assert_eq!(mask.len(), model.vocab_size().div_ceil(32));
        let token = draw(&mask, random);
        let token = token.unwrap_or_else(|| panic!("no token may follow {:?}", model.decode(&tokens)));
        assert_eq!(model.eos_ids().contains(&token), matcher.may_end() && model.eos_ids().contains(&token));
        tokens.push(token);
        matcher.consume(token);
        assert!(!matcher.is_failed(), "{:?} after {:?}", model.decode(&tokens), token);
    }
    Walk {
        text: model.decode(&tokens),
        num_tokens: u32::try_from(tokens.len()).unwrap(),
        is_complete: matcher.must_end(),
    }
}
