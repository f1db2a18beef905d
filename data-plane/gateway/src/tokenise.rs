//! Stage 4, render and tokenise: the exact tokens that the worker will compute, and whether they fit. Long inputs are
//! worked on off the async threads, and only as many at once as there are cores.

use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use tokio::sync::Semaphore;
use weir_text::{ChatMessage, TemplateError, TextModel};

use crate::error::GatewayError;
use crate::openai::Input;

/// Up to this many bytes tokenise in about a millisecond, less than the detour through another thread may take under
/// load.
const INLINE_BYTES: usize = 8 << 10;
/// A template's own words for a refusal are passed on up to this length.
const MAX_REASON_CHARS: usize = 500;

/// Bounds how many long inputs are tokenised at once.
#[derive(Debug)]
pub(crate) struct Tokeniser {
    long_inputs: Arc<Semaphore>,
}

impl Tokeniser {
    pub(crate) fn new(threads: usize) -> Self {
        Self { long_inputs: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// The prompt's tokens. What cannot have `context_tokens` or fewer is refused before it is encoded.
    pub(crate) async fn tokenise(
        &self,
        text: Arc<TextModel>,
        input: Input,
        context_tokens: u64,
        now: DateTime<Utc>,
    ) -> Result<Vec<u32>, GatewayError> {
        refuse_what_never_fits(&text, &input, context_tokens)?;
        if input_bytes(&input) <= INLINE_BYTES {
            return tokenise(&text, &input, now);
        }
        let permit = self.long_inputs.clone().acquire_owned().await;
        let permit = permit.map_err(|_| GatewayError::Stopping)?;
        let work = move || {
            // Held by the thread: a caller that goes away does not make room for another thread.
            let _permit = permit;
            tokenise(&text, &input, now)
        };
        let joined = tokio::task::spawn_blocking(work).await;
        joined.unwrap_or(Err(GatewayError::Internal("the tokenising thread failed")))
    }
}

fn input_bytes(input: &Input) -> usize {
    match input {
        Input::Chat(messages) => messages.iter().map(|message| message.content.len() + 64).sum(),
        Input::Text(text) => text.len(),
        // Only checked, not encoded.
        Input::Tokens(_) => 0,
    }
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

fn tokenise(text: &TextModel, input: &Input, now: DateTime<Utc>) -> Result<Vec<u32>, GatewayError> {
    let tokens = match input {
        Input::Chat(messages) => return chat(text, messages, now),
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
    Ok(tokens)
}

fn chat(text: &TextModel, messages: &[ChatMessage], now: DateTime<Utc>) -> Result<Vec<u32>, GatewayError> {
    let rendered = text.render_chat_at(messages, &[], true, Some(SystemTime::from(now))).map_err(refused)?;
    text.encode_rendered(&rendered).map_err(|_| too_large())
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
