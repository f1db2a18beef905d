//! Text in, tokens out, and back: tokenizers, chat templates, incremental detokenizer and stop matcher.
//!
//! A gateway and a worker build the same [`TextModel`] from the same [`ModelText`], which is plain data, so both agree
//! to the token without either trusting the other. This crate never opens weights or files, knows no wire and no
//! tenant, reads no clock and keeps no state between calls.
//!
//! Where to start:
//!
//! | question | file |
//! | --- | --- |
//! | what travels from artifact to gateway, and its digest | `model_text.rs` |
//! | how a prompt becomes tokens | `text_model.rs`, then `encoder.rs` |
//! | how words are cut; a new pre-tokenizer name | `pre_tokenizer.rs` |
//! | how symbols are merged | `merge.rs` |
//! | how a conversation is rendered, within what bounds | `chat/template.rs` |
//! | why a user cannot forge a control token | `chat/guard.rs` |
//! | how tokens become text, one at a time | `detokenizer.rs` |
//! | how stop strings are found | `stop_matcher.rs` |
//! | how a model calls tools, and whether it thinks | `answer_form.rs` |
//! | how thoughts, content and calls are told apart in an answer | `answer_parser.rs` |
//! | what a template without tools gets instead | `chat/hermes.rs` |
//! | how an answer is held to a grammar | `grammar.rs` |
//! | how it ends within its budget | `grammar/ending.rs` |

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod answer_form;
mod answer_parser;
mod byte_level;
mod char_class;
mod chat;
mod detokenizer;
mod encoder;
mod error;
mod grammar;
mod marks;
mod merge;
mod model_text;
mod pre_tokenizer;
mod reasoning;
mod stop_matcher;
#[cfg(test)]
mod testing;
mod text_model;
mod tool_calls;
mod vocabulary;

pub use answer_form::{AnswerForm, ToolFamily};
pub use answer_parser::{AnswerEvent, AnswerParser, CallableTools};
pub use chat::{ChatMessage, MAX_JSON_DEPTH, RenderedChat, TemplateError, Tool, ToolCall};
pub use detokenizer::Detokenizer;
pub use encoder::MAX_TEXT_BYTES;
pub use error::TextError;
pub use grammar::{
    Grammar, GrammarError, GrammarMatcher, GrammarSpec, MAX_GRAMMAR_BYTES, MAX_GRAMMAR_DEPTH, TokenMask,
};
pub use model_text::{
    MAX_MERGES, MAX_MODEL_TEXT_BYTES, MAX_TEMPLATE_BYTES, MAX_TOKEN_BYTES, MAX_TOKENS, ModelText,
};
pub use stop_matcher::{StopError, StopLimits, StopMatcher, StopStep};
pub use text_model::TextModel;
pub use tool_calls::grammar::{ToolUse, tool_of_rule};
