//! Why a grammar cannot be followed, in words for whoever sent it.

use thiserror::Error;

use super::GrammarSpec;

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
    /// Each instance of the schema needs another within itself.
    #[error(
        "the schema has no finite instance: `{needed}` is needed and leads back to `{back_to}` each time"
    )]
    Endless {
        /// Where, as a reference into the schema.
        needed: String,
        /// Where it leads.
        back_to: String,
    },
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
    /// A schema within a grammar.
    #[error("in the rule `{rule}`, {error}")]
    InRule { rule: String, error: Box<GrammarError> },
}

impl GrammarError {
    /// The rule that a message is about, if it is one of a schema within a grammar, and what it says of that.
    pub fn in_rule(message: &str) -> Option<(&str, &str)> {
        message.strip_prefix("in the rule `")?.split_once("`, ")
    }
}

/// Tells what `llguidance` says of a grammar that it does not take.
pub(super) fn of_compiler(error: &anyhow::Error, spec: &GrammarSpec) -> GrammarError {
    let message = error.to_string();
    if let GrammarSpec::Lark(text) = spec
        && let Some((rule, message)) = of_embedded(&message, text)
    {
        return GrammarError::InRule { rule: rule.to_owned(), error: Box::new(of_message(message)) };
    }
    of_message(&message)
}

/// The rule that holds the schema which a message is about, and what it says: the compiler quotes the whole line, which
/// nobody wrote who only sent a schema.
fn of_embedded<'a>(message: &'a str, lark: &'a str) -> Option<(&'a str, &'a str)> {
    let (place, message) = message.strip_prefix("at ")?.split_once("): failed to compile JSON schema: ")?;
    let line: usize = place.split_once('(')?.0.parse().ok()?;
    let (rule, _) = lark.lines().nth(line.checked_sub(1)?)?.split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_quote =
        |text: &str| text.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(" | ");
    let quotes_at = message.match_indices('\n').map(|(at, _)| at).find(|at| is_quote(&message[at + 1..]));
    rule.chars().all(is_name).then_some((rule, &message[..quotes_at.unwrap_or(message.len())]))
}

fn of_message(message: &str) -> GrammarError {
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
