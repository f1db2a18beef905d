//! Answers that keep to a grammar: JSON, a JSON Schema, or a context-free grammar in `llguidance`'s Lark dialect.
//!
//! A [`Grammar`] is compiled once from a [`GrammarSpec`] and a model's tokens. A [`GrammarMatcher`] follows one answer: it
//! tells which tokens may come next, takes the one that came, and knows when nothing may follow. With a budget it also
//! keeps a valid ending within reach, see `ending.rs`.
//!
//! What a caller sends is bounded before `llguidance` sees it and compiled on a stack of its own; what `llguidance` throws
//! is caught. Nothing here reads a clock.

mod chart;
mod completion;
mod ending;
mod error;
mod finite;
mod matcher;
mod pattern;
mod rules;
mod source;
mod tokens;

use std::fmt;
use std::sync::Arc;

use llguidance::TokenParser;

use crate::text_model::TextModel;
use ending::Ending;
pub use error::GrammarError;
pub use matcher::{GrammarMatcher, TokenMask};
pub(crate) use source::embedded;
pub use source::{MAX_GRAMMAR_BYTES, MAX_GRAMMAR_DEPTH};
pub(crate) use tokens::GrammarTokens;

/// `llguidance` compiles schemas by recursion, at most one level for each few bytes of a schema of [`MAX_GRAMMAR_BYTES`].
/// Only the pages that are used cost memory.
const COMPILE_STACK_BYTES: usize = 512 << 20;

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarSpec {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// An instance of this JSON Schema, which is JSON text. Properties come in the order in which the schema names them.
    JsonSchema(String),
    /// What `start` of this Lark grammar derives. `%json { … }` embeds a JSON Schema, `<|name|>` is a control token.
    Lark(String),
}

impl GrammarSpec {
    /// The right side of a Lark rule that derives the same. `None` for a grammar that has its own rules.
    ///
    /// # Errors
    /// [`GrammarError`], as far as it shows before the grammar is compiled.
    pub fn as_rule(&self) -> Result<Option<String>, GrammarError> {
        match self {
            Self::JsonObject => embedded(r#"{"type":"object"}"#, None).map(Some),
            Self::JsonSchema(schema) => embedded(schema, None).map(Some),
            Self::Lark(_) => Ok(None),
        }
    }
}

/// A grammar that is ready to be followed.
#[derive(Clone)]
pub struct Grammar {
    parser: TokenParser,
    ending: Option<Arc<Ending>>,
    tokens: Arc<GrammarTokens>,
}

impl Grammar {
    /// Takes from under a millisecond to some hundred for the largest schemas: not for a thread that others wait for.
    ///
    /// # Errors
    /// [`GrammarError`], with words for whoever sent the grammar.
    pub fn compile(model: &TextModel, spec: &GrammarSpec) -> Result<Self, GrammarError> {
        let source = source::read(spec)?;
        let tokens = model.grammar_tokens().ok_or(GrammarError::NoEndToken)?;
        let compile = || {
            let mut parser = matcher::caught(|| tokens.parser(source))?;
            parser.start_without_prompt();
            let ending = matcher::caught(|| Ok(Ending::of(&mut parser, &tokens)));
            if matcher::is_exhausted(&parser) {
                return Ok(Err(GrammarError::TooComplex));
            }
            let ending = ending.ok().flatten().map(Arc::new);
            let grammar = Self { parser, ending, tokens: Arc::clone(&tokens) };
            let may_begin = GrammarMatcher::new(grammar.clone(), None).mask().iter().any(|word| *word != 0);
            Ok(if may_begin { Ok(grammar) } else { Err(GrammarError::NoAnswer) })
        };
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
            thread.spawn_scoped(scope, compile).map(std::thread::ScopedJoinHandle::join)
        });
        match compiled {
            Ok(Ok(Ok(outcome))) => outcome,
            Ok(Ok(Err(error))) => Err(error::of_compiler(&error, spec)),
            Ok(Err(_)) | Err(_) => Err(GrammarError::TooComplex),
        }
    }

    /// Tokens of a shortest answer, the one that ends it included: no budget below it can be kept. An upper bound, since
    /// a token that spans two symbols of the grammar counts as two. `None` where it is not known; then a budget is not
    /// looked at.
    pub fn shortest_answer(&self) -> Option<u32> {
        self.ending.as_ref().map(|ending| ending.shortest_answer())
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Grammar")
            .field("shortest_answer", &self.shortest_answer())
            .finish_non_exhaustive()
    }
}
