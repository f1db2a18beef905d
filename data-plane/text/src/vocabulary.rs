//! The tokens of a model: what each stands for in bytes, and which of them text may become.
//!
//! Everything is in the text's own bytes: GGUF's spellings (GPT-2's stand-ins for bytes, SentencePiece's `▁` for a
//! space, `<0x0A>` for a byte) are resolved once, here, so that nothing later knows of them.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::byte_level;
use crate::error::TextError;
use crate::model_text::ModelText;

/// SentencePiece spells a space as this character.
const SENTENCEPIECE_SPACE: char = '\u{2581}';

/// How tokens are spelt and ranked: GGUF's `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenizerModel {
    /// `gpt2`
    ByteLevel,
    /// `llama`
    SentencePiece,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Part of text; text becomes it by merging.
    Normal,
    /// Stands for what has no token; never made from text, decodes to nothing.
    Unknown,
    /// Part of the protocol between template and model; text never becomes it, and it decodes to nothing.
    Control,
    /// Text, but matched whole before anything else is cut.
    UserDefined,
    /// Never made from text.
    Unused,
    /// One byte, for what has no other token.
    Byte,
}

impl TokenKind {
    fn from_gguf(value: i32) -> Result<Self, TextError> {
        Ok(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            other => return Err(TextError::BadVocabulary(format!("token type {other} is not known"))),
        })
    }
}

/// What is known of a token, in one place in memory: each is looked up at random.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its bytes end.
    end: u32,
    /// Where its text ends, of which it has none unless it is whole characters.
    text_end: u32,
    kind: TokenKind,
}

/// Immutable after construction.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// All tokens' bytes, one after the other.
    arena: Vec<u8>,
    /// The texts of tokens that are whole characters, so that nobody has to look for characters in them again.
    text: String,
    entries: Vec<Entry>,
    /// Ids of normal tokens, by their bytes.
    normal: HashTable<u32>,
    hasher: FixedState,
    /// The token of each single byte, for byte-level merging and for byte fallback.
    byte_tokens: [Option<u32>; 256],
    longest_bytes: usize,
}

impl Vocabulary {
    pub(crate) fn new(data: &ModelText, model: TokenizerModel) -> Result<Self, TextError> {
        if data.tokens.is_empty() || data.tokens.len() != data.token_types.len() {
            let (tokens, types) = (data.tokens.len(), data.token_types.len());
            return Err(TextError::BadVocabulary(format!("{tokens} tokens with {types} token types")));
        }
        let hasher = FixedState::default();
        let mut this = Self {
            arena: Vec::new(),
            text: String::new(),
            entries: Vec::with_capacity(data.tokens.len()),
            normal: HashTable::with_capacity(data.tokens.len()),
            hasher,
            byte_tokens: [None; 256],
            longest_bytes: char::MAX.len_utf8(),
        };
        for (id, (spelling, &kind)) in (0u32..).zip(data.tokens.iter().zip(&data.token_types)) {
            this.push(id, spelling, TokenKind::from_gguf(kind)?, model)?;
        }
        Ok(this)
    }

    fn push(
        &mut self,
        id: u32,
        spelling: &str,
        kind: TokenKind,
        model: TokenizerModel,
    ) -> Result<(), TextError> {
        let start = self.arena.len();
        match (kind, model) {
            (TokenKind::Byte, _) => {
                let byte = parse_byte(spelling).ok_or_else(|| {
                    TextError::BadVocabulary(format!("token {id} is of type byte but names none"))
                })?;
                self.arena.push(byte);
            }
            (TokenKind::Normal | TokenKind::Unused, TokenizerModel::ByteLevel) => {
                byte_level::decode_into(spelling, &mut self.arena);
            }
            (TokenKind::Normal | TokenKind::Unused, TokenizerModel::SentencePiece) => {
                for part in spelling.split_inclusive(SENTENCEPIECE_SPACE) {
                    match part.strip_suffix(SENTENCEPIECE_SPACE) {
                        Some(before) => {
                            self.arena.extend_from_slice(before.as_bytes());
                            self.arena.push(b' ');
                        }
                        None => self.arena.extend_from_slice(part.as_bytes()),
                    }
                }
            }
            (TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined, _) => {
                self.arena.extend_from_slice(spelling.as_bytes());
            }
        }
        let end =
            u32::try_from(self.arena.len()).map_err(|_| TextError::BadVocabulary("over 4 GiB".to_owned()))?;
        if adds_text(kind)
            && let Ok(text) = std::str::from_utf8(&self.arena[start..])
        {
            self.text.push_str(text);
        }
        let text_end = u32::try_from(self.text.len()).expect("no more than all bytes");
        self.entries.push(Entry { end, text_end, kind });
        self.longest_bytes = self.longest_bytes.max(self.arena.len() - start);
        self.index(id, start, kind, model);
        Ok(())
    }

    fn index(&mut self, id: u32, start: usize, kind: TokenKind, model: TokenizerModel) {
        let Self { arena, entries, normal, hasher, byte_tokens, .. } = self;
        let bytes = &arena[start..];
        let stands_for_byte = kind == TokenKind::Byte
            || (kind == TokenKind::Normal && model == TokenizerModel::ByteLevel && bytes.len() == 1);
        if stands_for_byte {
            byte_tokens[usize::from(bytes[0])].get_or_insert(id);
        }
        if kind == TokenKind::Normal && !bytes.is_empty() {
            let of = |id: u32| slice(arena, entries, id);
            if normal.find(hasher.hash_one(bytes), |&other| of(other) == bytes).is_none() {
                normal.insert_unique(hasher.hash_one(bytes), id, |&other| hasher.hash_one(of(other)));
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the longest token, and at least of the longest character.
    pub(crate) fn longest_bytes(&self) -> usize {
        self.longest_bytes
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.entries.len()).expect("counted in u32 when built")
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.entries.get(id as usize).map(|entry| entry.kind)
    }

    /// The bytes a token is matched by; of a control token, its name. Empty for an id that does not exist.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        match (id as usize) < self.entries.len() {
            true => slice(&self.arena, &self.entries, id),
            false => &[],
        }
    }

    /// The bytes a token adds to the text: none for control and unknown ones, nor for an id that does not exist.
    pub(crate) fn text_bytes(&self, id: u32) -> &[u8] {
        if self.kind(id).is_some_and(adds_text) { self.bytes(id) } else { &[] }
    }

    /// The text that a token of whole characters adds; `None` for all others.
    #[inline]
    pub(crate) fn whole_text(&self, id: u32) -> Option<&str> {
        let id = id as usize;
        let end = self.entries.get(id)?.text_end as usize;
        let start = if id == 0 { 0 } else { self.entries[id - 1].text_end as usize };
        self.text.get(start..end).filter(|text| !text.is_empty())
    }

    /// The normal token with exactly these bytes.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<u32> {
        self.normal
            .find(self.hasher.hash_one(bytes), |&id| slice(&self.arena, &self.entries, id) == bytes)
            .copied()
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }
}

fn adds_text(kind: TokenKind) -> bool {
    match kind {
        TokenKind::Control | TokenKind::Unknown => false,
        TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused | TokenKind::Byte => true,
    }
}

fn slice<'a>(arena: &'a [u8], entries: &[Entry], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { entries[id - 1].end as usize };
    &arena[start..entries[id].end as usize]
}

/// `<0x0A>`
fn parse_byte(spelling: &str) -> Option<u8> {
    let hex = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn byte_level_spellings_become_bytes() {
        let data = testing::byte_level(&["Ġhi", "é"], None);
        let vocabulary = Vocabulary::new(&data, TokenizerModel::ByteLevel).unwrap();
        assert_eq!(vocabulary.bytes(vocabulary.find(b" hi").unwrap()), b" hi");
        assert!(vocabulary.find("é".as_bytes()).is_none(), "é spells the single byte 0xE9");
        assert_eq!(vocabulary.bytes(vocabulary.byte_token(0xE9).unwrap()), b"\xE9");
        assert_eq!(vocabulary.bytes(1 << 30), b"");
    }

    #[test]
    fn sentencepiece_spellings_become_bytes() {
        let data = testing::sentencepiece(&[("▁a▁", -1.0)], None);
        let vocabulary = Vocabulary::new(&data, TokenizerModel::SentencePiece).unwrap();
        assert!(vocabulary.find(b" a ").is_some());
        assert_eq!(vocabulary.text_bytes(vocabulary.byte_token(0x0A).unwrap()), b"\n");
        assert_eq!(vocabulary.bytes(testing::BOS), b"<bos>");
        assert_eq!(vocabulary.text_bytes(testing::BOS), b"");
    }

    #[test]
    fn bad_vocabularies_are_errors() {
        let good = testing::sentencepiece(&[("a", -1.0)], None);
        let check = |change: &dyn Fn(&mut ModelText)| {
            let mut data = good.clone();
            change(&mut data);
            assert!(Vocabulary::new(&data, TokenizerModel::SentencePiece).is_err());
        };
        check(&|data| data.token_types[0] = 7);
        check(&|data| data.token_types[0] = 6);
        check(&|data| data.token_types.truncate(3));
        check(&|data| (data.tokens, data.token_types) = (vec![], vec![]));
    }
}
