//! Calls of tools in an answer's text, as it arrives. `frame.rs` knows what each family puts around its calls,
//! `call_object.rs` reads a call that is a JSON object, `gemma_call.rs` one of Gemma's. `grammar.rs` makes the model
//! write what is read here.

mod call_object;
mod frame;
mod gemma_call;
pub(crate) mod grammar;

use frame::FramedCalls;

use crate::answer_form::ToolFamily;
use crate::answer_parser::{AnswerEvent, CallableTools, content};

/// Reads the calls of one answer.
#[derive(Debug, Clone)]
pub(crate) struct ToolCallParser {
    calls: FramedCalls,
    /// What may still become a mark: shorter than one.
    pending: String,
    sink: Sink,
}

impl ToolCallParser {
    pub(crate) fn new(family: ToolFamily, tools: CallableTools) -> Self {
        let sink = Sink { tools, next_index: 0, held: String::new(), events: Vec::new() };
        Self { calls: FramedCalls::new(family), pending: String::new(), sink }
    }

    pub(crate) fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        if text.is_empty() {
            return;
        }
        let mut text_and_pending = std::mem::take(&mut self.pending);
        text_and_pending.push_str(text);
        let mut rest = text_and_pending.as_str();
        loop {
            let step = self.calls.step(rest, &mut self.sink);
            rest = &rest[step.taken..];
            if step.waits || rest.is_empty() {
                break;
            }
        }
        self.pending = rest.to_owned();
        self.sink.drain_into(events);
    }

    /// The end of the text: what was held back is no call.
    pub(crate) fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        let pending = std::mem::take(&mut self.pending);
        self.calls.finish(&pending, &mut self.sink);
        self.sink.drain_into(events);
    }
}

/// What became of a call so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More of it is to come.
    More,
    /// Its last byte is taken.
    Complete,
    /// It is no call of a known tool; what was held is to be released.
    NoCall,
    /// It was one, and then went on as no JSON can. The call has ended.
    Broken,
}

/// What one step did with the text before it.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Bytes that it is done with.
    taken: usize,
    /// What is left may become a mark: it needs more text. It is shorter than the longest mark.
    waits: bool,
}

impl Step {
    fn took(taken: usize) -> Self {
        Self { taken, waits: false }
    }

    fn waits_after(taken: usize) -> Self {
        Self { taken, waits: true }
    }
}

/// Where events go, and what is held back of what may be a call.
#[derive(Debug, Clone)]
struct Sink {
    tools: CallableTools,
    next_index: u32,
    /// The text of what may turn out to be no call, from its first byte.
    held: String,
    events: Vec<AnswerEvent>,
}

impl Sink {
    fn knows(&self, name: &str) -> bool {
        self.tools.names.iter().any(|known| known == name)
    }

    /// Whether what comes now is still wanted: with one call at most, nothing after its end.
    fn is_open(&self) -> bool {
        self.tools.parallel || self.next_index == 0
    }

    fn content(&mut self, text: &str) {
        if self.is_open() {
            content(text, &mut self.events);
        }
    }

    /// What was held is no call.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.content(&held);
    }

    /// What was held is the beginning of a call.
    fn begin(&mut self, name: String) {
        self.held.clear();
        if self.is_open() {
            self.events.push(AnswerEvent::ToolCallBegin { index: self.next_index, name });
        }
    }

    fn arguments(&mut self, piece: &str) {
        if self.is_open() && !piece.is_empty() {
            let (index, piece) = (self.next_index, piece.to_owned());
            AnswerEvent::Arguments { index, piece }.append_to(&mut self.events);
        }
    }

    fn end(&mut self) {
        if self.is_open() {
            self.events.push(AnswerEvent::ToolCallEnd { index: self.next_index });
        }
        self.next_index = self.next_index.saturating_add(1);
    }

    fn drain_into(&mut self, events: &mut Vec<AnswerEvent>) {
        self.events.drain(..).for_each(|event| event.append_to(events));
    }
}
