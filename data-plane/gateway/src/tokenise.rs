//! Stage 4, render and tokenise: the exact tokens that the worker will compute, and whether they fit. Long inputs are
//! worked on off the async threads, and only as many at once as there are cores.

use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use tokio::sync::Semaphore;
use weir_text::{ChatMessage, TemplateError, TextModel, Tool};

use crate::error::GatewayError;
use crate::openai::Input;

/// Up to this many bytes tokenise in about a millisecond, less than the detour through another thread may take under
/// load.
const INLINE_BYTES: usize = 8 << 10;
/// A template's own words for a refusal are passed on up to this length.
const MAX_REASON_CHARS: usize = 500;

/// What the worker is to continue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// It ends inside a thought of the model's.
    pub(crate) opens_thought: bool,
}

/// Bounds how many long inputs are tokenised at once.
#[derive(Debug)]
pub(crate) struct Tokeniser {
    long_inputs: Arc<Semaphore>,
}

impl Tokeniser {
    pub(crate) fn new(threads: usize) -> Self {
        Self { long_inputs: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// The prompt, with these tools in a chat. What cannot have `context_tokens` or fewer is refused before it is encoded.
    pub(crate) async fn tokenise(
        &self,
        text: Arc<TextModel>,
        input: Input,
        tools: Vec<Tool>,
        context_tokens: u64,
        now: DateTime<Utc>,
    ) -> Result<Prompt, GatewayError> {
        refuse_what_never_fits(&text, &input, context_tokens)?;
        if input_bytes(&input) + tools_bytes(&tools) <= INLINE_BYTES {
            return tokenise(&text, &input, &tools, now);
        }
        let permit = self.long_inputs.clone().acquire_owned().await;
        let permit = permit.map_err(|_| GatewayError::Stopping)?;
        let work = move || {
            // Held by the thread: a caller that goes away does not make room for another thread.
            let _permit = permit;
            tokenise(&text, &input, &tools, now)
        };
        let joined = tokio::task::spawn_blocking(work).await;
        joined.unwrap_or(Err(GatewayError::Internal("the tokenising thread failed")))
    }
}

fn input_bytes(input: &Input) -> usize {
    match input {
        Input::Chat(messages) => messages.iter().map(message_bytes).sum(),
        Input::Text(text) => text.len(),
        // Only checked, not encoded.
        Input::Tokens(_) => 0,
    }
}

fn message_bytes(message: &ChatMessage) -> usize {
    let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len() + 64);
    let thought = message.reasoning_content.as_ref().map_or(0, String::len);
    message.content.len() + thought + calls.sum::<usize>() + 64
}

fn tools_bytes(tools: &[Tool]) -> usize {
    let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    tools.iter().map(|tool| bytes(&tool.description) + bytes(&tool.parameters) + 64).sum()
}

/// By a lower bound that costs a count of bytes, so that a huge input is answered at once.
fn refuse_what_never_fits(text: &TextModel, input: &Input, context_tokens: u64) -> Result<(), GatewayError> {
    let prompt_tokens = match input {
        // A token may span the end of a message and what the template writes there: one off for each.
        Input::Chat(messages) => {
            messages.iter().map(|message| text.least_tokens(&message.content).saturating_sub(1)).sum()
        }
        Input::Text(prompt) => text.least_tokens(prompt),
        Input::Tokens(ids) => ids.len(),
    } as u64;
    if prompt_tokens <= context_tokens {
        return Ok(());
    }
    let param = input.param();
    Err(GatewayError::ContextLength { limit_tokens: context_tokens, prompt_tokens, output_tokens: 0, param })
}

fn tokenise(
    text: &TextModel,
    input: &Input,
    tools: &[Tool],
    now: DateTime<Utc>,
) -> Result<Prompt, GatewayError> {
    let tokens = match input {
        Input::Chat(messages) => return chat(text, messages, tools, now),
        Input::Text(prompt) => text.encode(prompt).map_err(|_| too_large())?,
        Input::Tokens(ids) => {
            if ids.iter().any(|&id| id as usize >= text.vocab_size()) {
                return Err(GatewayError::Template {
                    reason: format!("a token id is not below {}", text.vocab_size()),
                    param: "prompt",
                });
            }
            ids.clone()
        }
    };
    if tokens.is_empty() {
        let reason = "the prompt is empty".into();
        return Err(GatewayError::Template { reason, param: "prompt" });
    }
    Ok(Prompt { tokens, opens_thought: false })
}

fn chat(
    text: &TextModel,
    messages: &[ChatMessage],
    tools: &[Tool],
    now: DateTime<Utc>,
) -> Result<Prompt, GatewayError> {
    let now = Some(SystemTime::from(now));
    let rendered = text.render_chat_at(messages, tools, true, now).map_err(refused)?;
    let tokens = text.encode_rendered(&rendered).map_err(|_| too_large())?;
    Ok(Prompt { tokens, opens_thought: text.opens_thought(&rendered) })
}

fn refused(error: TemplateError) -> GatewayError {
    let reason = match error {
        TemplateError::Raised(words) => words.chars().take(MAX_REASON_CHARS).collect(),
        TemplateError::NoTemplate => "the model has none; use /v1/completions".into(),
        TemplateError::Invalid { line, .. } => {
            tracing::error!(line, "a chat template failed");
            return GatewayError::Internal("the chat template failed");
        }
        // Facts about sizes; none quotes the conversation.
        other => other.to_string(),
    };
    GatewayError::Template { reason, param: "messages" }
}

fn too_large() -> GatewayError {
    GatewayError::Template { reason: "the text is too long".into(), param: "prompt" }
}

#[cfg(test)]
mod tests;
