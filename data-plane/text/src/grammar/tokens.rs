//! A model's tokens as grammars need them, made once for each model.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::{ParserFactory, TokenParser};
use toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};

use crate::text_model::TextModel;

/// Work and memory of one grammar, in `llguidance`'s units. A lexer state takes 1 to 2 kB, 14,000 of lexer fuel a millisecond
/// (50,000 while a grammar is compiled); they are spent where a mask meets new states, seldom after an answer's first tokens.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 25_000,
        initial_lexer_fuel: 3_000_000,
        step_lexer_fuel: 2_000_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// All but a few hundred tokens are shorter.
pub(super) const MAX_PLAIN_BYTES: usize = 16;

/// Tokens by their bytes.
pub(crate) struct GrammarTokens {
    factory: ParserFactory,
    env: TokEnv,
    single_bytes: SingleBytes,
    num_tokens: usize,
    eos_ids: Vec<u32>,
    /// Tokens that stay in a JSON string, as a mask: whole characters, but no quote, backslash or control character, and not
    /// many bytes.
    plain: Vec<u32>,
    /// By token: its place in the order of their bytes; `u32::MAX` for those that are no text.
    rank: Vec<u32>,
}

impl GrammarTokens {
    /// About 50 ms for 50,000 tokens. `None` if nothing ends an answer, or two million bytes are not enough for a token.
    pub(crate) fn new(model: &TextModel) -> Option<Self> {
        let num_tokens = u32::try_from(model.vocab_size()).ok()?;
        let first_eos = *model.eos_ids().first()?;
        let words: Vec<Vec<u8>> = (0..num_tokens).map(|id| word(model, id)).collect();
        let info = TokRxInfo::new(num_tokens, first_eos);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(model.eos_ids());
        let is_single = |word: &Vec<u8>| if word.len() == 1 { word.clone() } else { Vec::new() };
        let single_bytes = TokTrie::from(&info, &words.iter().map(is_single).collect::<Vec<_>>());
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).ok()?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let is_text = |id: &u32| !model.token_bytes(*id).is_empty() && !model.eos_ids().contains(id);
        let mut texts: Vec<u32> = (0..num_tokens).filter(is_text).collect();
        texts.sort_by(|left, right| model.token_bytes(*left).cmp(model.token_bytes(*right)));
        let mut rank = vec![u32::MAX; words.len()];
        (0..).zip(&texts).for_each(|(place, id)| rank[*id as usize] = place);
        let mut plain = vec![0; words.len().div_ceil(32)];
        for id in texts.into_iter().filter(|id| is_plain_token(model.token_bytes(*id))) {
            plain[(id / 32) as usize] |= 1 << (id % 32);
        }
        Some(Self {
            factory,
            env,
            single_bytes: SingleBytes(single_bytes),
            num_tokens: model.vocab_size(),
            eos_ids: model.eos_ids().to_vec(),
            plain,
            rank,
        })
    }

    pub(super) fn parser(&self, grammar: TopLevelGrammar) -> anyhow::Result<TokenParser> {
        self.factory.create_parser(grammar)
    }

    /// Gives a lexer the fuel of a whole mask once more. `llguidance` does so where it computes a bias, and nowhere else.
    pub(super) fn refuel(&self, parser: &mut TokenParser) {
        // What has a prefix is not kept as the next mask.
        parser.parser.compute_bias(&NoBias(self.trie()), &[0]);
    }

    /// The tokens of one byte that may come next, and those that end an answer if they may: where a whole mask takes too
    /// much, since each byte that is tried takes some.
    pub(super) fn byte_mask(&self, parser: &mut TokenParser) -> anyhow::Result<SimpleVob> {
        let mut allowed = parser.parser.compute_bias(&self.single_bytes, &[]);
        if let Some(error) = parser.parser.get_error() {
            anyhow::bail!(error.message());
        }
        if parser.is_accepting() {
            self.eos_ids.iter().for_each(|eos| allowed.allow_token(*eos));
        }
        Ok(allowed)
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.trie().token(id)
    }

    pub(super) fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    pub(super) fn plain(&self) -> &[u32] {
        &self.plain
    }

    /// The text tokens of a mask in the order of their bytes, so that neighbours have much in common.
    pub(super) fn sorted(&self, mask: impl Iterator<Item = u32>) -> Vec<u32> {
        let bits = |(word, bits): (u32, u32)| {
            (0..32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 32 + bit)
        };
        let rank = |id: u32| self.rank.get(id as usize).copied().unwrap_or(u32::MAX);
        let tokens = (0..).zip(mask).flat_map(bits).map(|id| (rank(id), id));
        let mut sorted: Vec<(u32, u32)> = tokens.filter(|(rank, _)| *rank < u32::MAX).collect();
        sorted.sort_unstable();
        sorted.into_iter().map(|(_, id)| id).collect()
    }

    /// Words of a mask.
    pub(super) fn mask_words(&self) -> usize {
        self.num_tokens.div_ceil(32)
    }
}

/// Allows what may come of the tokens of a part of the vocabulary.
struct SingleBytes(TokTrie);

impl BiasComputer for SingleBytes {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut allowed = self.0.alloc_token_set();
        self.0.add_bias(parser, &mut allowed, start);
        allowed
    }

    fn trie(&self) -> &TokTrie {
        &self.0
    }
}

/// Allows nothing, at no cost.
struct NoBias<'a>(&'a TokTrie);

impl BiasComputer for NoBias<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}

/// Whether it never ends a JSON string nor begins an escape.
pub(super) fn is_plain(byte: u8) -> bool {
    byte >= b' ' && !matches!(byte, b'"' | b'\\' | 0x7F)
}

fn is_plain_token(bytes: &[u8]) -> bool {
    bytes.len() <= MAX_PLAIN_BYTES
        && bytes.iter().all(|byte| is_plain(*byte))
        && std::str::from_utf8(bytes).is_ok()
}

/// A control token cannot be spelt out: `llguidance` marks it with a byte that no text has.
fn word(model: &TextModel, id: u32) -> Vec<u8> {
    match model.control_name(id) {
        b"" => model.token_bytes(id).to_vec(),
        name => [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat(),
    }
}

impl fmt::Debug for GrammarTokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GrammarTokens").field("num_tokens", &self.num_tokens).finish_non_exhaustive()
    }
}
