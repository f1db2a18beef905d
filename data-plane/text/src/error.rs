//! What can go wrong with tokenizer data and text. No variant carries a prompt.

use thiserror::Error;

/// A model's text data is unusable, or a text cannot be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    #[error("{what} is over its limit: {actual} > {limit}")]
    TooLarge { what: &'static str, limit: usize, actual: usize },
    #[error("model text is not in its canonical form")]
    Malformed(#[source] serde_json::Error),
    #[error("tokenizer model `{0}` is not supported")]
    UnknownTokenizerModel(String),
    /// Guessing would give other tokens than the model was trained on, silently.
    #[error("pre-tokenizer `{pre_tokenizer}` of tokenizer model `{tokenizer_model}` is not supported")]
    UnknownPreTokenizer { tokenizer_model: &'static str, pre_tokenizer: String },
    #[error("the vocabulary is unusable: {0}")]
    BadVocabulary(String),
    #[error("the chat template does not parse, line {line}: {reason}")]
    BadTemplate { line: usize, reason: String },
}
