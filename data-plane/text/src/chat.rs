//! Conversations as a model's chat template writes them.

mod budget;
mod call_ids;
mod clock;
mod conversation;
mod guard;
mod hermes;
mod instrument;
mod json;
mod json_tree;
mod python_methods;
mod python_text;
mod sequences;
mod template;
mod tool;

use std::borrow::Cow;

use thiserror::Error;

pub(crate) use call_ids::nine_characters;
pub(crate) use conversation::Conversation;
pub(crate) use guard::{Guard, SpecialNames};
pub(crate) use hermes::{Place, rewrite};
pub(crate) use json_tree::Json;
pub use json_tree::MAX_JSON_DEPTH;
pub(crate) use template::ChatTemplate;
pub use tool::{Tool, ToolCall};

/// One turn of a conversation, as the caller gave it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// Lower-case letters, digits, `_` and `-`. Whether it is a known one is the template's business.
    pub role: String,
    /// Empty where there is none, as in a message that only calls tools: templates add to it without asking.
    pub content: String,
    pub name: Option<String>,
    /// What an assistant thought before it answered, for templates that repeat it.
    pub reasoning_content: Option<String>,
    /// Calls that an assistant's message makes.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    /// A message that is only text.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned(), ..Self::default() }
    }
}

/// Why a conversation has no rendering. `Display` carries nothing of the conversation.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    #[error("the model has no chat template")]
    NoTemplate,
    #[error("a message's role is not a word of letters, digits, `_` and `-`")]
    Role,
    #[error("a tool's parameters are no JSON object, or nested more than {MAX_JSON_DEPTH} levels deep")]
    Parameters,
    #[error("the messages use every character that could mark their borders")]
    AllGuardsUsed,
    /// The template itself refuses the conversation, for instance a role that it does not know. The text is for the
    /// caller, not for logs: it may quote the conversation.
    #[error("the chat template refuses the conversation")]
    Raised(String),
    /// The template does what it cannot: the artifact's fault, not the caller's.
    #[error("the chat template failed at line {line}: {reason}")]
    Invalid { line: usize, reason: String },
    #[error("rendering the chat template took more than {limit} instructions")]
    OutOfFuel { limit: u64 },
    #[error("rendering the chat template made more than {limit} bytes of text")]
    TooLarge { limit: usize },
}

/// A rendered conversation. It still knows which of its text came from the messages, as far as that matters.
#[derive(Debug, Clone)]
pub struct RenderedChat {
    guarded: String,
    guard: Guard,
}

impl RenderedChat {
    pub(crate) fn new(guarded: String, guard: Guard) -> Self {
        Self { guarded, guard }
    }

    /// The text as the template alone would write it.
    pub fn text(&self) -> Cow<'_, str> {
        self.guard.strip(&self.guarded)
    }

    pub(crate) fn guarded(&self) -> &str {
        &self.guarded
    }

    pub(crate) fn guard(&self) -> Guard {
        self.guard
    }
}
