//! Token ids back to text, one at a time: never half a character, never one lost.
//!
//! What has been returned so far plus what [`Detokenizer::finish`] returns equals [`TextModel::decode`] of all tokens
//! at once, whatever the tokens are. O(1) amortised for each byte, and no allocation once the buffers have grown.

use std::sync::Arc;

use crate::text_model::TextModel;

/// The text of one sequence as it grows.
#[derive(Debug)]
pub struct Detokenizer {
    model: Arc<TextModel>,
    decoder: Utf8Decoder,
    /// SentencePiece puts a space before a text; it is not part of it.
    drop_space: bool,
    /// Control tokens that are shown by their names.
    shown: Vec<u32>,
}

impl Detokenizer {
    /// For a text that begins with the first token pushed.
    pub fn new(model: Arc<TextModel>) -> Self {
        let drop_space = model.has_space_prefix();
        Self { model, decoder: Utf8Decoder::default(), drop_space, shown: Vec::new() }
    }

    /// For what is generated after `prompt`: a space that the model makes after ordinary text is part of the answer.
    pub fn continuing(model: Arc<TextModel>, prompt: &[u32]) -> Self {
        let after_text = prompt.last().is_some_and(|&id| !model.token_bytes(id).is_empty());
        let mut this = Self::new(model);
        this.drop_space &= !after_text;
        this
    }

    /// Shows these control tokens by their names, for a parser that reads them: what such a token marks is not part
    /// of the text otherwise. Ids of other tokens change nothing.
    pub fn showing(mut self, control_tokens: Vec<u32>) -> Self {
        self.shown = control_tokens;
        self
    }

    /// The characters that `token` completes. A control token completes none, unless it is shown.
    #[inline]
    pub fn push(&mut self, token: u32) -> &str {
        if self.decoder.pending.is_empty()
            && !self.drop_space
            && let Some(text) = self.model.whole_text(token)
        {
            return text;
        }
        let mut bytes = self.model.token_bytes(token);
        if bytes.is_empty() && self.shown.contains(&token) {
            bytes = self.model.control_name(token);
        }
        if self.drop_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.drop_space = false;
        }
        self.decoder.push(bytes)
    }

    /// The end of the text: a character that was never completed is U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.decoder.finish()
    }
}

/// Bytes to characters as [`String::from_utf8_lossy`] does it, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Utf8Decoder {
    /// Bytes without a character yet: at most three of them between calls.
    pending: Vec<u8>,
    text: String,
}

impl Utf8Decoder {
    #[inline]
    pub(crate) fn push<'a>(&'a mut self, bytes: &'a [u8]) -> &'a str {
        if self.pending.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            return whole;
        }
        self.text.clear();
        if self.pending.is_empty() {
            let taken = decode(bytes, &mut self.text);
            self.pending.extend_from_slice(&bytes[taken..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let taken = decode(&self.pending, &mut self.text);
            self.pending.drain(..taken);
        }
        &self.text
    }

    pub(crate) fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Appends the characters of `bytes`, U+FFFD for each stretch that can never become one, and returns how many bytes
/// that took; what is left could still become a character.
fn decode(bytes: &[u8], out: &mut String) -> usize {
    let mut chunks = bytes.utf8_chunks().peekable();
    let mut taken = 0;
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        taken += chunk.valid().len();
        if chunk.invalid().is_empty() || (chunks.peek().is_none() && is_incomplete(chunk.invalid())) {
            break;
        }
        out.push(char::REPLACEMENT_CHARACTER);
        taken += chunk.invalid().len();
    }
    taken
}

/// Whether more bytes could make a character of these, which are the last.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn byte_tokens(model: &TextModel, bytes: &[u8]) -> Vec<u32> {
        bytes.iter().map(|&byte| model.byte_token(byte).unwrap()).collect()
    }

    fn streamed(model: &Arc<TextModel>, tokens: &[u32]) -> String {
        let mut detokenizer = Detokenizer::new(Arc::clone(model));
        let mut text = String::new();
        for &token in tokens {
            text += detokenizer.push(token);
        }
        text += detokenizer.finish();
        assert_eq!(detokenizer.finish(), "");
        text
    }

    fn models() -> [Arc<TextModel>; 2] {
        let byte_level = testing::byte_level(&["Ġhello"], None);
        let pieces = [("▁", -5.0), ("h", -6.0), ("i", -7.0), ("hi", -2.0), ("▁hi", -1.0), ("中", -3.0)];
        let sentencepiece = testing::sentencepiece(&pieces, None);
        [byte_level, sentencepiece].map(|data| Arc::new(TextModel::new(data).unwrap()))
    }

    #[test]
    fn a_character_comes_with_its_last_byte() {
        for model in models() {
            let tokens = byte_tokens(&model, "é😀".as_bytes());
            let mut detokenizer = Detokenizer::new(model);
            let deltas: Vec<String> =
                tokens.iter().map(|&token| detokenizer.push(token).to_owned()).collect();
            assert_eq!(deltas, ["", "é", "", "", "", "😀"]);
            assert_eq!(detokenizer.finish(), "");
        }
    }

    #[test]
    fn control_tokens_say_nothing_and_break_no_character() {
        let [model, _] = models();
        let bytes = byte_tokens(&model, "é".as_bytes());
        assert_eq!(streamed(&model, &[testing::IM_START, bytes[0], testing::IM_END, bytes[1], 1 << 30]), "é");
    }

    #[test]
    fn shown_control_tokens_are_their_names_and_others_stay_hidden() {
        let [model, _] = models();
        let bytes = byte_tokens(&model, "é".as_bytes());
        let mut detokenizer =
            Detokenizer::new(Arc::clone(&model)).showing(vec![testing::IM_START, bytes[0], 1 << 30]);
        let tokens = [bytes[0], bytes[1], testing::IM_START, testing::IM_END, 1 << 30, bytes[0], bytes[1]];
        let text: String = tokens.iter().map(|&token| detokenizer.push(token).to_owned()).collect();
        assert_eq!(text, "é<|im_start|>é");
    }

    #[test]
    fn a_prefixed_space_is_dropped_once_and_kept_in_a_continuation() {
        let [_, model] = models();
        let hi = model.encode("hi hi").unwrap();
        assert_eq!(streamed(&model, &hi), "hi hi");
        let mut detokenizer = Detokenizer::continuing(Arc::clone(&model), &hi);
        assert_eq!(detokenizer.push(hi[1]), " hi");
        let mut detokenizer = Detokenizer::continuing(Arc::clone(&model), &[hi[1], testing::IM_START]);
        assert_eq!(detokenizer.push(hi[1]), "hi");
    }

    proptest::proptest! {
        #[test]
        fn streamed_equals_whole(tokens in proptest::collection::vec(0u32..270, 0..60)) {
            for model in models() {
                proptest::prop_assert_eq!(streamed(&model, &tokens), model.decode(&tokens));
            }
        }

        #[test]
        fn any_bytes_in_any_pieces(pieces in proptest::collection::vec(
            proptest::collection::vec(proptest::prelude::prop_oneof![0u8..=255, 0x80u8..=0xF4], 0..4), 0..30)) {
            let mut decoder = Utf8Decoder::default();
            let mut text = String::new();
            for piece in &pieces {
                text += decoder.push(piece);
                proptest::prop_assert!(decoder.pending.len() < 4);
            }
            text += decoder.finish();
            proptest::prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }

        #[test]
        fn any_text_in_any_pieces(text in "\\PC{0,40}", seed in 1usize..7) {
            let mut decoder = Utf8Decoder::default();
            let streamed: String = text.as_bytes().chunks(seed).map(|piece| decoder.push(piece).to_owned()).collect();
            proptest::prop_assert_eq!(streamed, text);
        }
    }
}
