//! Cuts text into words before merging, as the pre-tokenizer that a model names does it.
//!
//! The published definitions are regular expressions; these are hand-written scanners of the same languages, because
//! this is the hottest loop of encoding. Every known name is listed in [`PreTokenizer::from_name`]; another one is an
//! error, for a wrong cut gives other tokens than the model was trained on, silently.

use crate::char_class::{CharClass, classify};
use crate::error::TextError;

/// The scanners for byte-level tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` (GPT-2's `encoder.py`).
    Gpt2,
    /// Each `\p{N}` on its own, then GPT-2's expression on what lies between (SmolLM's tokenizer: `Digits` with
    /// `individual_digits`, then `ByteLevel`).
    SmolLm,
}

impl PreTokenizer {
    pub(crate) fn from_name(name: Option<&str>) -> Result<Self, TextError> {
        match name {
            Some("gpt-2") => Ok(Self::Gpt2),
            Some("smollm") => Ok(Self::SmolLm),
            other => Err(TextError::UnknownPreTokenizer {
                tokenizer_model: "gpt2",
                pre_tokenizer: other.unwrap_or("(none)").to_owned(),
            }),
        }
    }

    /// Length in bytes of the first word of `text`, which is not empty. Never 0, always at a character's end.
    pub(crate) fn first_word(self, text: &str) -> usize {
        let mut scan = Scan { text, at: 0 };
        let Some((first, class)) = scan.next() else { return 0 };
        match class {
            CharClass::Number if self == Self::SmolLm => scan.at,
            CharClass::Letter | CharClass::Number => scan.run_of(class),
            CharClass::Other if first == '\'' => contraction(text).unwrap_or_else(|| scan.run_of(class)),
            CharClass::Other => scan.run_of(class),
            CharClass::Space => self.after_space(first, scan),
        }
    }

    /// The scan stands behind one white space character.
    fn after_space(self, first: char, mut scan: Scan<'_>) -> usize {
        match scan.peek() {
            None => scan.at,
            Some(CharClass::Number) if self == Self::SmolLm => scan.at,
            Some(class @ (CharClass::Letter | CharClass::Number | CharClass::Other)) => match first {
                ' ' => scan.run_of(class),
                _ => scan.at,
            },
            Some(CharClass::Space) => {
                let mut before_last = scan.at;
                while scan.peek() == Some(CharClass::Space) {
                    before_last = scan.at;
                    scan.next();
                }
                match scan.peek() {
                    None => scan.at,
                    Some(CharClass::Number) if self == Self::SmolLm => scan.at,
                    // The last white space character belongs to what follows it, if it is a space, or stands alone.
                    Some(_) => before_last,
                }
            }
        }
    }
}

/// An apostrophe and the letters of an English contraction; the rest of the word is a word of its own.
fn contraction(text: &str) -> Option<usize> {
    match text.as_bytes() {
        [b'\'', b'r', b'e', ..] | [b'\'', b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => Some(3),
        [b'\'', b's' | b't' | b'm' | b'd', ..] => Some(2),
        _ => None,
    }
}

/// A position in a text.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl Scan<'_> {
    fn next(&mut self) -> Option<(char, CharClass)> {
        let character = self.text[self.at..].chars().next()?;
        self.at += character.len_utf8();
        Some((character, classify(character)))
    }

    fn peek(&self) -> Option<CharClass> {
        self.text[self.at..].chars().next().map(classify)
    }

    /// Moves past all characters of a class; returns where it then stands.
    fn run_of(&mut self, class: CharClass) -> usize {
        while self.peek() == Some(class) {
            self.next();
        }
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pre_tokenizer: PreTokenizer, mut text: &str) -> Vec<&str> {
        let mut words = vec![];
        while !text.is_empty() {
            let (word, rest) = text.split_at(pre_tokenizer.first_word(text));
            words.push(word);
            text = rest;
        }
        words
    }

    #[test]
    fn gpt2_words() {
        let check =
            |text, expected: &[&str]| assert_eq!(words(PreTokenizer::Gpt2, text), expected, "{text:?}");
        check("Hello, world!", &["Hello", ",", " world", "!"]);
        check("I'll can't 'sup", &["I", "'ll", " can", "'t", " '", "sup"]);
        check("'sup 'S", &["'s", "up", " '", "S"]);
        check("a  b", &["a", " ", " b"]);
        check("a \n b", &["a", " \n", " b"]);
        check("a\nb", &["a", "\n", "b"]);
        check("a\n\nb", &["a", "\n", "\n", "b"]);
        check("a  ", &["a", "  "]);
        check("x12  34", &["x", "12", " ", " 34"]);
        check("中文，好", &["中文", "，", "好"]);
        check("a\u{a0}b", &["a", "\u{a0}", "b"]);
        check("''s", &["''", "s"]);
    }

    #[test]
    fn smollm_words() {
        let check =
            |text, expected: &[&str]| assert_eq!(words(PreTokenizer::SmolLm, text), expected, "{text:?}");
        check("x12  34", &["x", "1", "2", "  ", "3", "4"]);
        check(" 1", &[" ", "1"]);
        check("a\n\n1", &["a", "\n\n", "1"]);
        check("½Ⅷa", &["½", "Ⅷ", "a"]);
        check("a  b", &["a", " ", " b"]);
    }

    #[test]
    fn unknown_names_are_errors() {
        for name in [None, Some("default"), Some("llama3-typo"), Some("")] {
            assert!(PreTokenizer::from_name(name).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn words_cover_the_text(text in "(\\PC|[ '\n\ta1é中½]){0,40}") {
            for pre_tokenizer in [PreTokenizer::Gpt2, PreTokenizer::SmolLm] {
                proptest::prop_assert_eq!(words(pre_tokenizer, &text).concat(), text.clone());
            }
        }
    }
}
