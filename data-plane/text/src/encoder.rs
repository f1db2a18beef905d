//! Text to token ids, for text that is only text: what looks like a control token in it stays text.
//!
//! There is no cache of words: most words of real text are one token, which a table built at load tells without
//! merging. So encoding takes no lock, and its time says nothing about what other tenants wrote.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::TextError;
use crate::merge::{Merge, PairRanks, ScoreRanks, Word};
use crate::model_text::ModelText;
use crate::pre_tokenizer::PreTokenizer;
use crate::vocabulary::{TokenKind, TokenizerModel, Vocabulary};

/// Far above any context; keeps offsets within 32 bits.
pub const MAX_TEXT_BYTES: usize = 256 << 20;

/// Immutable after construction.
#[derive(Debug)]
pub(crate) struct Encoder {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    /// By token id: whether the word with these bytes becomes just this token.
    whole_words: Vec<bool>,
    user_defined: Option<Literals>,
    unknown: Option<u32>,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevel {
        pre_tokenizer: PreTokenizer,
        pairs: PairRanks,
    },
    SentencePiece {
        /// By token id; meaningful for normal tokens only.
        ranks: Vec<u32>,
        /// Every stretch of text starts with one more space.
        space_prefix: bool,
        /// No token has a space behind another character, so no merge crosses from one word to the next.
        words_start_at_spaces: bool,
    },
}

impl Encoder {
    pub(crate) fn new(data: &ModelText) -> Result<Self, TextError> {
        let model = match data.tokenizer_model.as_str() {
            "gpt2" => TokenizerModel::ByteLevel,
            "llama" => TokenizerModel::SentencePiece,
            other => return Err(TextError::UnknownTokenizerModel(other.to_owned())),
        };
        let vocabulary = Vocabulary::new(data, model)?;
        let algorithm = match model {
            TokenizerModel::ByteLevel => Algorithm::byte_level(data)?,
            TokenizerModel::SentencePiece => Algorithm::sentencepiece(data, &vocabulary)?,
        };
        let user_defined = Literals::new(&vocabulary, TokenKind::UserDefined, 1)?;
        let unknown = data.unknown_token_id;
        let whole_words = vec![false; vocabulary.len()];
        let mut this = Self { vocabulary, algorithm, whole_words, user_defined, unknown };
        this.whole_words = this.find_whole_words();
        Ok(this)
    }

    fn find_whole_words(&self) -> Vec<bool> {
        let (mut word, mut out) = (Word::default(), Vec::new());
        let is_whole = |id| {
            let bytes = self.vocabulary.bytes(id);
            out.clear();
            // Text is UTF-8, so a token of half a character is never a whole word.
            if self.vocabulary.kind(id) != Some(TokenKind::Normal) || std::str::from_utf8(bytes).is_err() {
                return false;
            }
            self.merge_word(bytes, &mut word, &mut out);
            out == [id]
        };
        self.vocabulary.ids().map(is_whole).collect()
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Whether decoded text begins with a space that the encoder put there.
    pub(crate) fn has_space_prefix(&self) -> bool {
        matches!(self.algorithm, Algorithm::SentencePiece { space_prefix: true, .. })
    }

    /// A lower bound of how many tokens `text` becomes, without making them.
    pub(crate) fn least_tokens(&self, text: &str) -> usize {
        // A byte that the vocabulary lacks may become no token at all.
        let counted = text.bytes().filter(|&byte| self.vocabulary.byte_token(byte).is_some()).count();
        counted / self.vocabulary.longest_bytes()
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, word: &mut Word, out: &mut Vec<u32>) {
        let Some(user_defined) = &self.user_defined else {
            return self.encode_stretch(text, word, out);
        };
        let mut rest = 0;
        for (range, id) in user_defined.find_iter(text) {
            self.encode_stretch(&text[rest..range.start], word, out);
            out.push(id);
            rest = range.end;
        }
        self.encode_stretch(&text[rest..], word, out);
    }

    /// Text without user-defined tokens.
    fn encode_stretch(&self, text: &str, word: &mut Word, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match &self.algorithm {
            Algorithm::ByteLevel { pre_tokenizer, .. } => {
                let mut rest = text;
                while !rest.is_empty() {
                    let (first, after) = rest.split_at(pre_tokenizer.first_word(rest));
                    self.encode_word(first.as_bytes(), word, out);
                    rest = after;
                }
            }
            Algorithm::SentencePiece { space_prefix, words_start_at_spaces, .. } => {
                let text = sentencepiece_spaces(text, *space_prefix);
                if !words_start_at_spaces {
                    return self.encode_word(text.as_bytes(), word, out);
                }
                let bytes = text.as_bytes();
                let mut start = 0;
                for at in 1..bytes.len() {
                    if bytes[at] == b' ' && bytes[at - 1] != b' ' {
                        self.encode_word(&bytes[start..at], word, out);
                        start = at;
                    }
                }
                self.encode_word(&bytes[start..], word, out);
            }
        }
    }

    fn encode_word(&self, bytes: &[u8], word: &mut Word, out: &mut Vec<u32>) {
        match self.vocabulary.find(bytes) {
            Some(id) if self.whole_words[id as usize] => out.push(id),
            _ => self.merge_word(bytes, word, out),
        }
    }

    /// `bytes` are UTF-8.
    fn merge_word(&self, bytes: &[u8], word: &mut Word, out: &mut Vec<u32>) {
        word.clear();
        match &self.algorithm {
            Algorithm::ByteLevel { pairs, .. } => {
                // A byte that the vocabulary lacks has no token at all and is dropped, as the reference does.
                for (at, &byte) in bytes.iter().enumerate() {
                    if let Some(id) = self.vocabulary.byte_token(byte) {
                        word.push(Some(id), at, at + 1);
                    }
                }
                word.merge_all(bytes, pairs);
            }
            Algorithm::SentencePiece { ranks, .. } => {
                let mut start = 0;
                while start < bytes.len() {
                    let end = start + utf8_length(bytes[start]);
                    word.push(self.vocabulary.find(&bytes[start..end]), start, end);
                    start = end;
                }
                word.merge_all(bytes, &ScoreRanks { vocabulary: &self.vocabulary, ranks });
            }
        }
        for piece in word.pieces() {
            match piece {
                Ok(id) => out.push(id),
                Err(range) => self.fall_back_to_bytes(&bytes[range], out),
            }
        }
    }

    fn fall_back_to_bytes(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let start = out.len();
        for &byte in bytes {
            match self.vocabulary.byte_token(byte) {
                Some(id) => out.push(id),
                None => {
                    out.truncate(start);
                    out.extend(self.unknown);
                    return;
                }
            }
        }
    }
}

impl Algorithm {
    fn byte_level(data: &ModelText) -> Result<Self, TextError> {
        let pre_tokenizer = PreTokenizer::from_name(data.pre_tokenizer.as_deref())?;
        if data.merges.is_empty() || data.add_space_prefix == Some(true) {
            let what =
                if data.merges.is_empty() { "no merge rules" } else { "a space prefix on byte-level text" };
            return Err(TextError::BadVocabulary(what.to_owned()));
        }
        let ids: std::collections::HashMap<&str, u32> =
            data.tokens.iter().map(String::as_str).zip(0..).collect();
        let mut pairs = PairRanks::default();
        for (rank, rule) in (0..).zip(&data.merges) {
            let parts = rule.split_once(' ').filter(|parts| !parts.0.is_empty() && !parts.1.is_empty());
            let merge = parts.and_then(|(left, right)| {
                let id = *ids.get([left, right].concat().as_str())?;
                Some((*ids.get(left)?, *ids.get(right)?, Merge { rank, id }))
            });
            let Some((left, right, merge)) = merge else {
                return Err(TextError::BadVocabulary(format!(
                    "merge rule {rank} names tokens that do not exist"
                )));
            };
            pairs.insert(left, right, merge);
        }
        Ok(Self::ByteLevel { pre_tokenizer, pairs })
    }

    fn sentencepiece(data: &ModelText, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        if let Some(name) = data.pre_tokenizer.as_deref().filter(|&name| name != "default") {
            let pre_tokenizer = name.to_owned();
            return Err(TextError::UnknownPreTokenizer { tokenizer_model: "llama", pre_tokenizer });
        }
        if data.scores.len() != vocabulary.len() || data.scores.iter().any(|score| score.is_nan()) {
            let count = data.scores.len();
            return Err(TextError::BadVocabulary(format!("{count} scores, or one of them is not a number")));
        }
        let mut by_score: Vec<u32> = vocabulary.ids().collect();
        by_score.sort_by(|&a, &b| data.scores[b as usize].total_cmp(&data.scores[a as usize]));
        let mut ranks = vec![0; vocabulary.len()];
        for pair in by_score.windows(2) {
            let (better, worse) = (pair[0] as usize, pair[1] as usize);
            ranks[worse] = ranks[better] + u32::from(data.scores[better] != data.scores[worse]);
        }
        let starts_anew = |id| {
            let bytes = vocabulary.bytes(id);
            vocabulary.kind(id) != Some(TokenKind::Normal)
                || bytes.windows(2).all(|pair| pair[0] == b' ' || pair[1] != b' ')
        };
        Ok(Self::SentencePiece {
            ranks,
            space_prefix: data.add_space_prefix.unwrap_or(true),
            words_start_at_spaces: vocabulary.ids().all(starts_anew),
        })
    }
}

/// A literal `▁` is a space to SentencePiece.
fn sentencepiece_spaces(text: &str, prefix: bool) -> Cow<'_, str> {
    match (prefix, text.contains('\u{2581}')) {
        (false, false) => Cow::Borrowed(text),
        (false, true) => Cow::Owned(text.replace('\u{2581}', " ")),
        (true, _) => Cow::Owned(format!(" {}", text.replace('\u{2581}', " "))),
    }
}

fn utf8_length(first: u8) -> usize {
    match first {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 1,
    }
}

/// Tokens that are found in text as they are written, leftmost and longest first.
#[derive(Debug)]
pub(crate) struct Literals {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Literals {
    /// Of all tokens of a kind with at least `min_chars` characters; `None` if there are none.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        kind: TokenKind,
        min_chars: usize,
    ) -> Result<Option<Self>, TextError> {
        let long_enough =
            |&id: &u32| String::from_utf8_lossy(vocabulary.bytes(id)).chars().count() >= min_chars;
        let of_kind = vocabulary.ids().filter(|&id| vocabulary.kind(id) == Some(kind));
        let ids: Vec<u32> = of_kind.filter(long_enough).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| vocabulary.bytes(id)))
            .map_err(|error| TextError::BadVocabulary(format!("special tokens: {error}")))?;
        Ok(Some(Self { automaton, ids }))
    }

    pub(crate) fn find_iter<'a>(
        &'a self,
        text: &'a str,
    ) -> impl Iterator<Item = (std::ops::Range<usize>, u32)> + 'a {
        self.automaton.find_iter(text).map(|found| (found.range(), self.ids[found.pattern().as_usize()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn encode(encoder: &Encoder, text: &str) -> Vec<String> {
        let mut ids = vec![];
        encoder.encode(text, &mut Word::default(), &mut ids);
        ids.iter().map(|&id| String::from_utf8_lossy(encoder.vocabulary.bytes(id)).into_owned()).collect()
    }

    fn letters() -> Vec<(&'static str, f32)> {
        vec![("▁", -9.0), ("a", -9.0), ("b", -9.0), ("▁a", -2.0), ("ab", -1.0), ("▁ab", -3.0)]
    }

    #[test]
    fn sentencepiece_puts_a_space_before_every_stretch_if_the_model_says_so() {
        let mut data = testing::sentencepiece(&letters(), None);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "ab ab"), [" ab", " ab"]);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), ""), [""; 0]);
        data.add_space_prefix = Some(false);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "ab ab"), ["ab", " ab"]);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "ab▁ab"), ["ab", " ab"]);
    }

    #[test]
    fn a_token_with_a_space_inside_is_merged_across_words() {
        let mut data = testing::sentencepiece(&[letters(), vec![("b▁", -0.5), ("ab▁", -0.6)]].concat(), None);
        data.add_space_prefix = Some(false);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "ab ab"), ["ab ", "ab"]);
    }

    #[test]
    fn what_has_no_token_falls_back_to_bytes_or_is_unknown() {
        let mut data = testing::sentencepiece(&letters(), None);
        data.add_space_prefix = Some(false);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "aéb"), ["a", "\u{FFFD}", "\u{FFFD}", "b"]);
        data.token_types.iter_mut().filter(|kind| **kind == 6).for_each(|kind| *kind = 5);
        assert_eq!(encode(&Encoder::new(&data).unwrap(), "aéb"), ["a", "<unk>", "b"]);
    }

    #[test]
    fn user_defined_tokens_are_matched_first_and_longest() {
        let mut data = testing::byte_level(&["ab"], None);
        for name in ["<t>", "<t><t>", "b<"] {
            data.tokens.push(name.to_owned());
            data.token_types.push(4);
        }
        let encoder = Encoder::new(&data).unwrap();
        assert_eq!(encode(&encoder, "ab<t><t><t>ab"), ["a", "b<", "t", ">", "<t><t>", "ab"]);
    }

    proptest::proptest! {
        #[test]
        fn the_table_of_whole_words_changes_nothing(text in "[ab ▁éx1']{0,30}") {
            for data in [testing::sentencepiece(&letters(), None), testing::byte_level(&["Ġab", "ba", "'s"], None)] {
                let with = Encoder::new(&data).unwrap();
                let mut without = Encoder::new(&data).unwrap();
                proptest::prop_assert!(without.whole_words.contains(&true));
                without.whole_words.fill(false);
                proptest::prop_assert_eq!(encode(&with, &text), encode(&without, &text));
            }
        }
    }
}
