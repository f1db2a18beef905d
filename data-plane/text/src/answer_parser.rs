//! Reads an answer while it is generated: what the model thinks, what it says, and the tools that it calls.
//!
//! The text may arrive in any pieces: the events of one kind that follow each other, put together, are the same. What
//! could be the start of a mark is held back until it is one or is none, and what turns out to be no call comes out
//! as it is. Linear in the text's length. What is held is at most what was pushed.

use crate::answer_form::{AnswerForm, ToolFamily};
use crate::reasoning::ThoughtParser;
use crate::tool_calls::ToolCallParser;

/// Something that an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerEvent {
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what it says.
    Content(String),
    /// It calls a tool; calls are numbered from 0.
    ToolCallBegin { index: u32, name: String },
    /// More of the call's arguments, which are JSON text in the end.
    Arguments { index: u32, piece: String },
    /// The call is complete. One that the end of the text cut has no end.
    ToolCallEnd { index: u32 },
}

/// Reads one answer. A clone of a new one reads another answer to the same prompt.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    thought: Option<ThoughtParser>,
    calls: Option<ToolCallParser>,
}

/// What a request lets the model do.
#[derive(Debug, Clone, Default)]
pub struct CallableTools {
    pub names: Vec<String>,
    /// Without it, what follows the first call is dropped.
    pub parallel: bool,
    /// The whole answer is calls: what the end of the text leaves of one that has no name yet is no content.
    pub required: bool,
}

impl AnswerParser {
    /// `opens_thought`: the prompt ends inside a thought, see [`crate::TextModel::opens_thought`]. Without `tools`
    /// nothing is a call. Only calls of these tools are calls.
    pub fn new(form: &AnswerForm, opens_thought: bool, tools: Option<CallableTools>) -> Self {
        let family: ToolFamily = form.tool_family();
        Self {
            thought: form.think_marks().map(|marks| ThoughtParser::new(marks, opens_thought)),
            calls: tools.map(|tools| ToolCallParser::new(family, tools)),
        }
    }

    /// Takes the next piece of the text and appends what it completes.
    pub fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        match &mut self.thought {
            None => Self::say(&mut self.calls, text, events),
            Some(thought) => {
                let said = thought.push(text, events);
                Self::say(&mut self.calls, &said, events);
            }
        }
    }

    /// The end of the text: what was held back comes out.
    pub fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        if let Some(thought) = &mut self.thought {
            let said = thought.finish(events);
            Self::say(&mut self.calls, &said, events);
        }
        if let Some(calls) = &mut self.calls {
            calls.finish(events);
        }
    }

    /// Whether what came last is part of a thought.
    pub fn is_thinking(&self) -> bool {
        self.thought.as_ref().is_some_and(ThoughtParser::is_thinking)
    }

    fn say(calls: &mut Option<ToolCallParser>, text: &str, events: &mut Vec<AnswerEvent>) {
        match calls {
            Some(calls) => calls.push(text, events),
            None => content(text, events),
        }
    }
}

impl AnswerEvent {
    /// Appends to what was told before it; text that goes on is one event.
    pub fn append_to(self, events: &mut Vec<AnswerEvent>) {
        match (self, events.last_mut()) {
            (Self::Content(text), Some(Self::Content(before))) => before.push_str(&text),
            (Self::Reasoning(text), Some(Self::Reasoning(before))) => before.push_str(&text),
            (Self::Arguments { index, piece }, Some(Self::Arguments { index: same, piece: before }))
                if index == *same =>
            {
                before.push_str(&piece);
            }
            (event, _) => events.push(event),
        }
    }
}

/// Appends to the content.
pub(crate) fn content(text: &str, events: &mut Vec<AnswerEvent>) {
    if !text.is_empty() {
        AnswerEvent::Content(text.to_owned()).append_to(events);
    }
}
