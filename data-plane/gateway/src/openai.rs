//! The OpenAI dialect: bodies in, bodies and events out. Nothing here knows limits, replicas or records; the pipeline
//! knows nothing of field names. Another dialect would stand beside this one.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completion;
mod logprobs;
mod message;
mod parameter;
mod parameters;
mod response_format;
mod sampling;
mod tools;

pub(crate) use parameter::ParameterError;
pub(crate) use tools::{ToolChoice, ToolsAsked};

use weir_schemas::records::Tier;
use weir_text::ChatMessage;

/// What is to be continued.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
    /// A conversation, to be rendered by the model's template.
    Chat(Vec<ChatMessage>),
    /// Plain text.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
}

impl Input {
    /// The parameter that holds it, for error objects.
    pub(crate) fn param(&self) -> &'static str {
        match self {
            Self::Chat(_) => "messages",
            Self::Text(_) | Self::Tokens(_) => "prompt",
        }
    }
}

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Text,
    JsonObject,
    /// An instance of this JSON Schema; `budget_aware`: with its end kept within reach of `max_tokens`.
    JsonSchema {
        schema: String,
        budget_aware: bool,
    },
    /// What this grammar derives, in llguidance's Lark dialect.
    Grammar(String),
}

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SamplingOptions {
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_k: u32,
    pub(crate) min_p: f32,
    pub(crate) seed: Option<u64>,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    /// Divides the logits of what was said before; 1 for none.
    pub(crate) repetition_penalty: f32,
}

/// A parsed and validated request; every field means what it says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) model: String,
    pub(crate) input: Input,
    /// What a chat may call.
    pub(crate) tools: ToolsAsked,
    /// `None`: whatever remains.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) sampling: SamplingOptions,
    /// Added to the logits of these tokens.
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Tell each token's log-probability, and of this many of the likeliest beside it.
    pub(crate) logprobs: Option<u32>,
    /// Choices, at least one.
    pub(crate) n: u32,
    pub(crate) response_format: ResponseFormat,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) tier: Tier,
    /// The answer says which it had.
    pub(crate) names_tier: bool,
    /// The client's own `metadata.request_id`.
    pub(crate) client_request_id: Option<String>,
}
