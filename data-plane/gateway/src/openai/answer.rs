//! The shapes of an answer, whole and in chunks, for both endpoints. Byte for byte what OpenAI's clients parse.

use bytes::Bytes;
use serde::Serialize;
use weir_schemas::ids::RequestId;

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u64,
}

impl Usage {
    pub(crate) fn new(prompt_tokens: u64, cached_tokens: u64, completion_tokens: u64) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// Why an answer ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    Stop,
    Length,
}

/// Writes one answer's bodies and chunks.
#[derive(Debug, Clone)]
pub(crate) struct AnswerWriter {
    endpoint: Endpoint,
    id: String,
    created: i64,
    model: String,
    fingerprint: String,
    include_usage: bool,
}

#[derive(Serialize)]
struct Envelope<'a, C> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: &'a [C],
    system_fingerprint: &'a str,
    /// Absent unless asked for; then null in every chunk but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: FinishReason,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct ChatChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    text: &'a str,
    index: u32,
    logprobs: Option<()>,
    finish_reason: Option<FinishReason>,
}

impl AnswerWriter {
    /// `artifact_digest` is the pinned version's; `system_fingerprint` changes with it.
    pub(crate) fn new(
        endpoint: Endpoint,
        request: RequestId,
        created: i64,
        model: &str,
        artifact_digest: &str,
        include_usage: bool,
    ) -> Self {
        let request = request.to_string();
        let suffix = request.split_once('_').map_or(request.as_str(), |(_, suffix)| suffix);
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        let hex = artifact_digest.strip_prefix("sha256:").unwrap_or(artifact_digest);
        Self {
            endpoint,
            id: format!("{prefix}-{suffix}"),
            created,
            model: model.to_owned(),
            fingerprint: format!("fp_{}", hex.chars().take(10).collect::<String>()),
            include_usage,
        }
    }

    /// The whole answer of a request that did not stream.
    pub(crate) fn whole(&self, text: &str, reason: FinishReason, usage: Usage) -> Bytes {
        match self.endpoint {
            Endpoint::Chat => {
                let message = Message { role: "assistant", content: text, refusal: None };
                let choice = ChatChoice { index: 0, message, logprobs: None, finish_reason: reason };
                self.json("chat.completion", &[choice], Some(Some(usage)))
            }
            Endpoint::Completion => {
                let choice = TextChoice { text, index: 0, logprobs: None, finish_reason: Some(reason) };
                self.json("text_completion", &[choice], Some(Some(usage)))
            }
        }
    }

    /// What comes before the first text, if anything.
    pub(crate) fn opening(&self) -> Option<Bytes> {
        match self.endpoint {
            Endpoint::Chat => Some(self.chat_chunk(Some("assistant"), Some(""), None)),
            Endpoint::Completion => None,
        }
    }

    /// A piece of text.
    pub(crate) fn text(&self, text: &str) -> Bytes {
        match self.endpoint {
            Endpoint::Chat => self.chat_chunk(None, Some(text), None),
            Endpoint::Completion => self.text_chunk(text, None),
        }
    }

    /// The chunk that says why it ended, the usage chunk where asked for, and the end mark.
    pub(crate) fn closing(&self, reason: FinishReason, usage: Usage) -> Bytes {
        let mut events = match self.endpoint {
            Endpoint::Chat => self.chat_chunk(None, None, Some(reason)),
            Endpoint::Completion => self.text_chunk("", Some(reason)),
        }
        .to_vec();
        if self.include_usage {
            let no_choices: &[TextChoice<'_>] = &[];
            events.extend(sse(&self.json(self.chunk_object(), no_choices, Some(Some(usage)))));
        }
        events.extend_from_slice(b"data: [DONE]\n\n");
        events.into()
    }

    fn chat_chunk(
        &self,
        role: Option<&'static str>,
        content: Option<&str>,
        reason: Option<FinishReason>,
    ) -> Bytes {
        let delta = Delta { role, content };
        let choice = ChatChunkChoice { index: 0, delta, logprobs: None, finish_reason: reason };
        sse(&self.json(self.chunk_object(), &[choice], self.no_usage_yet()))
    }

    fn text_chunk(&self, text: &str, reason: Option<FinishReason>) -> Bytes {
        let choice = TextChoice { text, index: 0, logprobs: None, finish_reason: reason };
        sse(&self.json(self.chunk_object(), &[choice], self.no_usage_yet()))
    }

    fn no_usage_yet(&self) -> Option<Option<Usage>> {
        self.include_usage.then_some(None)
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn json<C: Serialize>(&self, object: &'static str, choices: &[C], usage: Option<Option<Usage>>) -> Bytes {
        let envelope = Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            system_fingerprint: &self.fingerprint,
            usage,
        };
        serde_json::to_vec(&envelope).expect("strings and numbers always serialise").into()
    }
}

/// One server-sent event. JSON has no raw line breaks, so one `data:` line is enough.
pub(crate) fn sse(json: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(json.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(json);
    event.extend_from_slice(b"\n\n");
    event.into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn writer(endpoint: Endpoint, include_usage: bool) -> AnswerWriter {
        AnswerWriter::new(endpoint, RequestId::from_u128(5), 7, "m", "sha256:0123456789abcdef", include_usage)
    }

    fn events(bytes: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(bytes).unwrap();
        assert!(text.ends_with("\n\n"));
        text.trim_end()
            .split("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap())
            .map(|data| if data == "[DONE]" { json!("done") } else { serde_json::from_str(data).unwrap() })
            .collect()
    }

    #[test]
    fn chat_chunks_are_openais() {
        let writer = writer(Endpoint::Chat, true);
        assert_eq!(
            events(&writer.opening().unwrap()),
            [json!({
                "id": "chatcmpl-00000000000000000000000005", "object": "chat.completion.chunk", "created": 7,
                "model": "m", "system_fingerprint": "fp_0123456789", "usage": null,
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                             "finish_reason": null}],
            })]
        );
        let text = &events(&writer.text("a\n\"b\u{2028}"))[0];
        assert_eq!(text["choices"][0]["delta"], json!({"content": "a\n\"b\u{2028}"}));
        let closing = events(&writer.closing(FinishReason::Length, Usage::new(40, 32, 4)));
        assert_eq!(closing.len(), 3);
        assert_eq!(closing[0]["choices"][0]["delta"], json!({}));
        assert_eq!(closing[0]["choices"][0]["finish_reason"], "length");
        assert_eq!(closing[1]["choices"], json!([]));
        assert_eq!(
            closing[1]["usage"],
            json!({"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44,
                   "prompt_tokens_details": {"cached_tokens": 32}})
        );
        assert_eq!(closing[2], "done");
    }

    #[test]
    fn usage_is_absent_unless_asked_for() {
        let writer = writer(Endpoint::Completion, false);
        assert!(writer.opening().is_none());
        assert!(events(&writer.text("x"))[0].get("usage").is_none());
        let closing = events(&writer.closing(FinishReason::Stop, Usage::new(1, 0, 1)));
        assert_eq!(closing.len(), 2);
        assert_eq!(
            closing[0]["choices"],
            json!([{"text": "", "index": 0, "logprobs": null, "finish_reason": "stop"}])
        );
    }

    #[test]
    fn whole_answers_are_openais() {
        let usage = Usage::new(3, 0, 2);
        let chat: Value =
            serde_json::from_slice(&writer(Endpoint::Chat, false).whole("hi", FinishReason::Stop, usage))
                .unwrap();
        assert_eq!(chat["object"], "chat.completion");
        assert_eq!(
            chat["choices"],
            json!([{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                    "logprobs": null, "finish_reason": "stop"}])
        );
        assert_eq!(chat["usage"]["total_tokens"], 5);
        let text: Value = serde_json::from_slice(&writer(Endpoint::Completion, false).whole(
            "hi",
            FinishReason::Stop,
            usage,
        ))
        .unwrap();
        assert_eq!(
            (text["object"].as_str(), text["id"].as_str()),
            (Some("text_completion"), Some("cmpl-00000000000000000000000005"))
        );
        assert_eq!(text["choices"][0]["text"], "hi");
    }
}
