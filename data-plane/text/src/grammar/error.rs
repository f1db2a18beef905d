//! Why a grammar cannot be followed, in words for whoever sent it.

use thiserror::Error;

/// Longest message of the compiler that is passed on.
const MAX_MESSAGE_CHARS: usize = 300;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrammarError {
    #[error("{what} is over its limit: {actual} > {limit}")]
    TooLarge { what: &'static str, limit: usize, actual: usize },
    #[error("the schema is not JSON: {0}")]
    NotJson(String),
    #[error("a schema must be a JSON object")]
    NotASchema,
    /// What a schema asks for and cannot have, by its name.
    #[error("the JSON Schema keyword {0} is not supported")]
    UnsupportedKeyword(String),
    /// What else the compiler says; it names what it means.
    #[error("the grammar cannot be followed: {0}")]
    Unusable(String),
    #[error("the grammar is too complex to be followed")]
    TooComplex,
    #[error("no answer begins as the grammar has it, as where a schema refers to itself and nothing else")]
    NoAnswer,
    #[error("the model has no token that ends an answer")]
    NoEndToken,
}

/// Tells what `llguidance` says of a grammar that it does not take.
pub(super) fn of_compiler(error: &anyhow::Error) -> GrammarError {
    let message = error.to_string();
    if message.starts_with("panic:") || message.contains("fuel") || message.contains("too large") {
        return GrammarError::TooComplex;
    }
    if let Some(keywords) = message.strip_prefix("Unimplemented keys: [") {
        return GrammarError::UnsupportedKeyword(keywords.trim_end_matches(']').replace('"', "`"));
    }
    if message.starts_with("oneOf constraints are not supported") {
        let feature =
            "`oneOf` with alternatives that are not told apart by type or a constant property (use `anyOf`)";
        return GrammarError::UnsupportedKeyword(feature.to_owned());
    }
    if message.starts_with("min/maxProperties only supported") {
        let feature = "`minProperties` or `maxProperties` beside properties that are not required";
        return GrammarError::UnsupportedKeyword(feature.to_owned());
    }
    if let Some(format) = message.strip_prefix("Unknown format: ") {
        let format: String = format.chars().filter(|character| !character.is_control()).collect();
        let format: String = format.chars().take(MAX_MESSAGE_CHARS).collect();
        return GrammarError::UnsupportedKeyword(format!("`format` with the value `{format}`"));
    }
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    GrammarError::Unusable(line.chars().take(MAX_MESSAGE_CHARS).collect())
}
