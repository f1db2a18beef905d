//! What a gateway or worker needs of a model's artifact to turn text into tokens and back, as plain data.
//!
//! The worker copies it out of the artifact's metadata; a gateway fetches it over RPC and never opens weights. It is
//! kept as canonical bytes, whose SHA-256 is the tokenizer digest that a pinned version carries. Field names follow
//! GGUF's `tokenizer.*` keys. Nothing here interprets the data: [`crate::TextModel::new`] does, and refuses what it
//! does not know.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::TextError;

/// A vocabulary of 262,144 tokens is 8 MB; four times the largest known leaves room.
pub const MAX_MODEL_TEXT_BYTES: usize = 64 << 20;
/// Four times the largest known vocabulary.
pub const MAX_TOKENS: usize = 1 << 20;
/// Merge rules are fewer than two per token in every known vocabulary.
pub const MAX_MERGES: usize = 2 << 20;
/// The longest known token is 162 bytes (a run of byte-level spaces).
pub const MAX_TOKEN_BYTES: usize = 1024;
/// The longest known chat templates are under 20 kB.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Names of tokenizer models and pre-tokenizers.
const MAX_NAME_BYTES: usize = 128;

/// Tokenizer and chat template of one model version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelText {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub tokenizer_model: String,
    /// `tokenizer.ggml.pre`: how text is cut into words before merging.
    pub pre_tokenizer: Option<String>,
    #[serde(deserialize_with = "bounded::<_, _, MAX_TOKENS>")]
    pub tokens: Vec<String>,
    /// GGUF's token types, one a token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    #[serde(deserialize_with = "bounded::<_, _, MAX_TOKENS>")]
    pub token_types: Vec<i32>,
    /// One a token where the tokenizer model ranks by score, else empty.
    #[serde(deserialize_with = "bounded::<_, _, MAX_TOKENS>")]
    pub scores: Vec<f32>,
    /// `left right`, best first, where the tokenizer model has merge rules, else empty.
    #[serde(deserialize_with = "bounded::<_, _, MAX_MERGES>")]
    pub merges: Vec<String>,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub eot_token_id: Option<u32>,
    pub eom_token_id: Option<u32>,
    pub unknown_token_id: Option<u32>,
    pub padding_token_id: Option<u32>,
    /// Absent means the tokenizer model's habit: yes for `llama`, no for `gpt2`.
    pub add_bos_token: Option<bool>,
    /// Absent means the tokenizer model's habit: yes for `llama`, no for `gpt2`.
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

impl ModelText {
    /// The canonical form: what is sent, kept on disk and digested.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, numbers and lists always have a JSON form")
    }

    /// Reads what a worker sent or a disk kept. Bounded in time and memory whatever the bytes are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        if bytes.len() > MAX_MODEL_TEXT_BYTES {
            return Err(TextError::TooLarge {
                what: "model text",
                limit: MAX_MODEL_TEXT_BYTES,
                actual: bytes.len(),
            });
        }
        let data: Self = serde_json::from_slice(bytes).map_err(TextError::Malformed)?;
        data.check_bounds()?;
        Ok(data)
    }

    /// `sha256:` and the hex digest of [`Self::to_bytes`].
    pub fn digest(&self) -> String {
        use fmt::Write as _;
        let mut text = String::with_capacity(7 + 64);
        text.push_str("sha256:");
        for byte in Sha256::digest(self.to_bytes()) {
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        }
        text
    }

    /// Sizes and counts only; meaning is checked when a [`crate::TextModel`] is built.
    pub(crate) fn check_bounds(&self) -> Result<(), TextError> {
        let within = |what, actual, limit| match actual > limit {
            true => Err(TextError::TooLarge { what, limit, actual }),
            false => Ok(()),
        };
        within("number of tokens", self.tokens.len(), MAX_TOKENS)?;
        within("number of merges", self.merges.len(), MAX_MERGES)?;
        within("tokenizer model name", self.tokenizer_model.len(), MAX_NAME_BYTES)?;
        within("pre-tokenizer name", self.pre_tokenizer.as_ref().map_or(0, String::len), MAX_NAME_BYTES)?;
        within("chat template", self.chat_template.as_ref().map_or(0, String::len), MAX_TEMPLATE_BYTES)?;
        for token in &self.tokens {
            within("token", token.len(), MAX_TOKEN_BYTES)?;
        }
        for merge in &self.merges {
            within("merge rule", merge.len(), 2 * MAX_TOKEN_BYTES + 1)?;
        }
        Ok(())
    }
}

/// Stops reading a list at its limit, so that a hostile one costs no more memory than a real one.
fn bounded<'de, D, T, const LIMIT: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T, const LIMIT: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const LIMIT: usize> Visitor<'de> for Bounded<T, LIMIT> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {LIMIT} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == LIMIT {
                    return Err(de::Error::invalid_length(LIMIT + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    deserializer.deserialize_seq(Bounded::<T, LIMIT>(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ModelText {
        ModelText { scores: vec![-1.5, 0.1, f32::MIN_POSITIVE], ..crate::testing::byte_level(&["hi"], None) }
    }

    #[test]
    fn bytes_round_trip_and_digest_is_of_them() {
        let data = sample();
        let bytes = data.to_bytes();
        let again = ModelText::from_bytes(&bytes).unwrap();
        assert_eq!(again, data);
        assert_eq!(again.to_bytes(), bytes);
        assert_eq!(again.digest(), data.digest());
        assert!(data.digest().starts_with("sha256:") && data.digest().len() == 7 + 64);
        let changed = ModelText { add_bos_token: Some(true), ..data.clone() };
        assert_ne!(changed.digest(), data.digest());
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let check = |bytes: &[u8]| assert!(ModelText::from_bytes(bytes).is_err());
        check(b"");
        check(b"{}");
        check(b"[[[[[[[[");
        check(&vec![b'['; 1 << 20]);
        check(&vec![b' '; MAX_MODEL_TEXT_BYTES + 1]);
        let json = String::from_utf8(sample().to_bytes()).unwrap();
        check(json.replacen("\"tokens\":", "\"tokenz\":", 1).as_bytes());
        check(json.replacen("{", "{\"more\":1,", 1).as_bytes());
        check(&json.as_bytes()[..json.len() - 1]);
        let many = format!("\"merges\":[{}\"\"]", "\"\",".repeat(MAX_MERGES));
        let without = ModelText { merges: vec![], ..sample() }.to_bytes();
        let with_many = String::from_utf8(without).unwrap().replacen("\"merges\":[]", &many, 1);
        assert!(with_many.len() > many.len());
        check(with_many.as_bytes());
        let long = ModelText { tokens: vec!["x".repeat(MAX_TOKEN_BYTES + 1)], ..sample() };
        check(&long.to_bytes());
        let template = ModelText { chat_template: Some("x".repeat(MAX_TEMPLATE_BYTES + 1)), ..sample() };
        check(&template.to_bytes());
    }
}
