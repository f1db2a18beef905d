//! A walk through a grammar: one answer of random tokens.

use weir_text::{Grammar, GrammarMatcher, TextModel};

/// Where a walk came to.
pub(super) struct Walk {
    pub(super) text: String,
    pub(super) num_tokens: u32,
    /// The grammar was followed to its end.
    pub(super) is_complete: bool,
}

/// xorshift64*
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

pub(super) fn allowed(mask: &[u32]) -> Vec<u32> {
    let tokens = |(word, bits): (u32, &u32)| {
        let bits = *bits;
        (0..32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 32 + bit)
    };
    (0..).zip(mask).flat_map(tokens).collect()
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
        let allowed = allowed(&mask);
        assert!(!allowed.is_empty(), "no token may follow {:?}", model.decode(&tokens));
        let token = allowed[random.below(allowed.len())];
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
