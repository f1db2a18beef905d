//! What was said in a chat, as the fields of a message and of its deltas.

use serde::Serialize;
use weir_text::AnswerEvent;

/// One answer, put together.
#[derive(Debug, Default)]
pub(crate) struct Said {
    content: String,
    reasoning: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

/// `message` of a whole answer.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    role: &'static str,
    /// Null in a message that only calls.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: String,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// `delta` of a chunk.
#[derive(Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

#[derive(Serialize)]
struct CallDelta<'a> {
    index: u32,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    begins: Option<CallBegins>,
    function: Function<'a>,
}

/// Said once, with the call's name.
#[derive(Serialize)]
struct CallBegins {
    id: String,
    r#type: &'static str,
}

impl Said {
    pub(crate) fn add(&mut self, events: Vec<AnswerEvent>) {
        for event in events {
            match event {
                AnswerEvent::Content(text) => self.content.push_str(&text),
                AnswerEvent::Reasoning(text) => self.reasoning.push_str(&text),
                AnswerEvent::ToolCallBegin { name, .. } => self.calls.push((name, String::new())),
                AnswerEvent::Arguments { piece, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&piece);
                    }
                }
                AnswerEvent::ToolCallEnd { .. } => {}
            }
        }
    }

    pub(super) fn content(&self) -> &str {
        &self.content
    }

    /// `call_id` names a call by its number.
    pub(super) fn message(&self, call_id: impl Fn(usize) -> String) -> Message<'_> {
        let calls = self.calls.iter().enumerate().map(|(index, (name, arguments))| Call {
            id: call_id(index),
            r#type: "function",
            function: Function { name: Some(name), arguments },
        });
        let only_calls = self.content.is_empty() && !self.calls.is_empty();
        Message {
            role: "assistant",
            content: (!only_calls).then_some(self.content.as_str()),
            reasoning_content: (!self.reasoning.is_empty()).then_some(self.reasoning.as_str()),
            refusal: None,
            tool_calls: calls.collect(),
        }
    }
}

impl<'a> Delta<'a> {
    /// Who speaks.
    pub(super) fn opening() -> Self {
        Self { role: Some("assistant"), ..Self::content("") }
    }

    pub(super) fn content(text: &'a str) -> Self {
        Self { content: Some(text), ..Self::default() }
    }

    /// `None`: nothing of it is told. `call_id` names a call by its number.
    pub(super) fn of(event: &'a AnswerEvent, call_id: impl Fn(u32) -> String) -> Option<Self> {
        let call = |index, begins, function| Self {
            tool_calls: Some([CallDelta { index, begins, function }]),
            ..Self::default()
        };
        Some(match event {
            AnswerEvent::Content(text) => Self::content(text),
            AnswerEvent::Reasoning(text) => Self { reasoning_content: Some(text), ..Self::default() },
            AnswerEvent::ToolCallBegin { index, name } => {
                let begins = CallBegins { id: call_id(*index), r#type: "function" };
                call(*index, Some(begins), Function { name: Some(name), arguments: "" })
            }
            AnswerEvent::Arguments { index, piece } => {
                call(*index, None, Function { name: None, arguments: piece })
            }
            AnswerEvent::ToolCallEnd { .. } => return None,
        })
    }
}
