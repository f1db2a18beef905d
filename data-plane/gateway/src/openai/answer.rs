//! The shapes of an answer, whole and in chunks, for both endpoints. Byte for byte what OpenAI's clients parse.

mod said;

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use weir_schemas::ids::RequestId;
use weir_schemas::rpc::worker::TokenLogprob;
use weir_text::{AnswerEvent, TextModel};

use super::logprobs::{self, ChatLogprobs, TextLogprobs};
pub(crate) use said::Said;
use said::{Delta, Message};

/// Room for the event of a token or a few.
const CHUNK_BYTES: usize = 512;

/// Which of the two endpoints answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// Tokens as the engine counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: u64,
}

impl Usage {
    /// Cached tokens are part of the prompt's, reasoning tokens of the completion's.
    pub(crate) fn new(
        prompt_tokens: u64,
        cached_tokens: u64,
        completion_tokens: u64,
        reasoning_tokens: u64,
    ) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens },
        }
    }
}

/// Why an answer ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

/// One choice of a whole answer.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) said: Said,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) reason: Option<FinishReason>,
}

/// What an answer is of.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: String,
    /// Choices.
    pub(crate) n: usize,
    pub(crate) has_logprobs: bool,
    pub(crate) include_usage: bool,
    /// In OpenAI's words, in a chat that asked for one.
    pub(crate) service_tier: Option<&'static str>,
}

/// Writes one answer's bodies and chunks.
#[derive(Debug, Clone)]
pub(crate) struct AnswerWriter {
    asked: Asked,
    id: String,
    created: i64,
    fingerprint: String,
    /// Names tokens.
    text: Arc<TextModel>,
    /// Characters of the log-probabilities told so far, by choice.
    offsets: Vec<usize>,
}

#[derive(Serialize)]
struct Envelope<'a, C> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: &'a [C],
    system_fingerprint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'static str>,
    /// Absent unless asked for; then null in every chunk but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct ChatChunkChoice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<FinishReason>,
}

impl AnswerWriter {
    /// `artifact_digest` is the pinned version's; `system_fingerprint` changes with it.
    pub(crate) fn new(
        asked: Asked,
        request: RequestId,
        created: i64,
        artifact_digest: &str,
        text: Arc<TextModel>,
    ) -> Self {
        let request = request.to_string();
        let suffix = request.split_once('_').map_or(request.as_str(), |(_, suffix)| suffix);
        let prefix = match asked.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        let hex = artifact_digest.strip_prefix("sha256:").unwrap_or(artifact_digest);
        Self {
            id: format!("{prefix}-{suffix}"),
            created,
            fingerprint: format!("fp_{}", hex.chars().take(10).collect::<String>()),
            text,
            offsets: vec![0; asked.n],
            asked,
        }
    }

    pub(crate) fn num_choices(&self) -> usize {
        self.asked.n
    }

    /// The whole answer of a request that did not stream.
    pub(crate) fn whole(&mut self, choices: &[Choice], usage: Usage) -> Bytes {
        let choices = choices.iter().enumerate();
        match self.asked.endpoint {
            Endpoint::Chat => {
                let choices = choices.map(|(index, choice)| ChatChoice {
                    index,
                    message: choice.said.message(|call| self.call_id(index, call)),
                    logprobs: self.chat_logprobs(&choice.logprobs),
                    finish_reason: choice.reason,
                });
                json(&self.envelope("chat.completion", &choices.collect::<Vec<_>>(), Some(Some(usage))))
            }
            Endpoint::Completion => {
                let choices = choices.map(|(index, choice)| TextChoice {
                    text: choice.said.content(),
                    index,
                    logprobs: self.text_logprobs(index, &choice.logprobs),
                    finish_reason: choice.reason,
                });
                let choices: Vec<_> = choices.collect();
                json(&self.envelope("text_completion", &choices, Some(Some(usage))))
            }
        }
    }

    /// What comes before the first text: who speaks in each choice, in a chat.
    pub(crate) fn opening(&self) -> Vec<u8> {
        match self.asked.endpoint {
            Endpoint::Chat => (0..self.asked.n)
                .flat_map(|index| self.chat_chunk(index, Delta::opening(), None, None))
                .collect(),
            Endpoint::Completion => Vec::new(),
        }
    }

    /// A piece of a choice: a chunk for each event that is told, maybe none. Log-probabilities go with the first.
    pub(crate) fn piece(&mut self, index: usize, said: Vec<AnswerEvent>, logprobs: &[TokenLogprob]) -> Bytes {
        match self.asked.endpoint {
            Endpoint::Chat => self.chat_piece(index, &said, logprobs),
            Endpoint::Completion => {
                let mut whole = Said::default();
                whole.add(said);
                let logprobs = self.text_logprobs(index, logprobs);
                self.text_chunk(index, whole.content(), logprobs, None)
            }
        }
    }

    fn chat_piece(&self, index: usize, said: &[AnswerEvent], logprobs: &[TokenLogprob]) -> Bytes {
        let call_id = |call| self.call_id(index, call);
        let mut deltas: Vec<Delta<'_>> = said.iter().filter_map(|event| Delta::of(event, call_id)).collect();
        if deltas.is_empty() && !logprobs.is_empty() {
            deltas.push(Delta::content(""));
        }
        let mut logprobs = self.chat_logprobs(logprobs);
        let mut chunks = deltas.into_iter().map(|delta| self.chat_chunk(index, delta, logprobs.take(), None));
        match (chunks.next(), chunks.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only,
            (Some(first), Some(second)) => {
                [first, second].into_iter().chain(chunks).flatten().collect::<Vec<u8>>().into()
            }
        }
    }

    /// The same in a stream and in a whole answer, and different from every other call's.
    fn call_id(&self, choice: usize, call: impl std::fmt::Display) -> String {
        let request = self.id.split_once('-').map_or("", |(_, request)| request);
        format!("call_{request}_{choice}_{call}")
    }

    /// The chunk that says why a choice ended.
    pub(crate) fn finished(&self, index: usize, reason: FinishReason) -> Bytes {
        match self.asked.endpoint {
            Endpoint::Chat => self.chat_chunk(index, Delta::default(), None, Some(reason)),
            Endpoint::Completion => self.text_chunk(index, "", None, Some(reason)),
        }
    }

    /// The usage chunk where asked for, and the end mark.
    pub(crate) fn end(&self, usage: Usage) -> Bytes {
        let mut events = Vec::new();
        if self.asked.include_usage {
            let no_choices: &[TextChoice<'_>] = &[];
            events.extend(sse(&self.envelope(self.chunk_object(), no_choices, Some(Some(usage)))));
        }
        events.extend_from_slice(b"data: [DONE]\n\n");
        events.into()
    }

    fn chat_logprobs(&self, tokens: &[TokenLogprob]) -> Option<ChatLogprobs> {
        self.asked.has_logprobs.then(|| logprobs::chat(&self.text, tokens))
    }

    fn text_logprobs(&mut self, index: usize, tokens: &[TokenLogprob]) -> Option<TextLogprobs> {
        let offset = self.offsets.get_mut(index).filter(|_| self.asked.has_logprobs)?;
        Some(logprobs::completion(&self.text, tokens, offset))
    }

    fn chat_chunk(
        &self,
        index: usize,
        delta: Delta<'_>,
        logprobs: Option<ChatLogprobs>,
        reason: Option<FinishReason>,
    ) -> Bytes {
        let choice = ChatChunkChoice { index, delta, logprobs, finish_reason: reason };
        sse(&self.envelope(self.chunk_object(), &[choice], self.no_usage_yet()))
    }

    fn text_chunk(
        &self,
        index: usize,
        text: &str,
        logprobs: Option<TextLogprobs>,
        reason: Option<FinishReason>,
    ) -> Bytes {
        let choice = TextChoice { text, index, logprobs, finish_reason: reason };
        sse(&self.envelope(self.chunk_object(), &[choice], self.no_usage_yet()))
    }

    fn no_usage_yet(&self) -> Option<Option<Usage>> {
        self.asked.include_usage.then_some(None)
    }

    fn chunk_object(&self) -> &'static str {
        match self.asked.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn envelope<'a, C>(
        &'a self,
        object: &'static str,
        choices: &'a [C],
        usage: Option<Option<Usage>>,
    ) -> Envelope<'a, C> {
        Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.asked.model,
            choices,
            system_fingerprint: &self.fingerprint,
            service_tier: self.asked.service_tier.filter(|_| self.asked.endpoint == Endpoint::Chat),
            usage,
        }
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("strings and numbers always serialise").into()
}

/// One server-sent event. JSON has no raw line breaks, so one `data:` line is enough.
pub(crate) fn sse(value: &impl Serialize) -> Bytes {
    let mut event = Vec::with_capacity(CHUNK_BYTES);
    event.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut event, value).expect("strings and numbers always serialise");
    event.extend_from_slice(b"\n\n");
    event.into()
}

#[cfg(test)]
mod tests;
