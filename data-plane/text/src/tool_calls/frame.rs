//! How each family frames its calls, and where in a frame the text is.

use super::call_object::CallObject;
use super::gemma_call::GemmaCall;
use super::{Outcome, Sink, Step};
use crate::answer_form::ToolFamily;
use crate::marks::{Found, find, may_begin_with};

/// How a family frames its calls. White space may stand between all parts.
#[derive(Debug)]
pub(super) struct Frame {
    /// Begins calls anywhere in the text.
    open: &'static str,
    /// A call at the very start of the answer is a call too.
    bare: bool,
    /// The calls are a list: `[` begins it, `]` ends it.
    list: bool,
    /// Between two calls behind one `open`.
    separator: Option<char>,
    /// Ends what `open` began.
    close: &'static str,
    /// What a call begins with.
    first: char,
    call: fn() -> Call,
}

/// One call, being read.
#[derive(Debug, Clone)]
enum Call {
    Json(CallObject),
    Gemma(GemmaCall),
}

fn json() -> Call {
    Call::Json(CallObject::new())
}

fn gemma() -> Call {
    Call::Gemma(GemmaCall::new())
}

impl Frame {
    pub(super) fn of(family: ToolFamily) -> &'static Self {
        match family {
            ToolFamily::Hermes => &HERMES,
            ToolFamily::Llama3 => &LLAMA3,
            ToolFamily::Mistral => &MISTRAL,
            ToolFamily::Gemma => &GEMMA,
        }
    }
}

/// Each call has both marks.
const HERMES: Frame = Frame {
    open: "<tool_call>",
    bare: false,
    list: false,
    separator: None,
    close: "</tool_call>",
    first: '{',
    call: json,
};

/// The whole answer is calls, or what stands behind the mark is.
const LLAMA3: Frame = Frame {
    open: "<|python_tag|>",
    bare: true,
    list: false,
    separator: Some(';'),
    close: "",
    first: '{',
    call: json,
};

/// One mark, one list.
const MISTRAL: Frame = Frame {
    open: "[TOOL_CALLS]",
    bare: false,
    list: true,
    separator: Some(','),
    close: "]",
    first: '{',
    call: json,
};

/// Each call has both marks; it is no JSON.
const GEMMA: Frame = Frame {
    open: "<start_function_call>",
    bare: false,
    list: false,
    separator: None,
    close: "<end_function_call>",
    first: 'c',
    call: gemma,
};

#[derive(Debug, Clone)]
enum Place {
    /// At the start, or behind calls: only white space so far, which is held. It belongs to the frame if calls follow.
    Blank {
        start: bool,
    },
    /// In the content.
    Content,
    /// Behind `open`, which is held: the list, or the call.
    Opened {
        in_list: bool,
    },
    Call(Call),
    /// Behind a call: what ends it, separates it from the next, or is content.
    AfterCall,
}

/// Reads the calls of one answer, apart from what is content.
#[derive(Debug, Clone)]
pub(super) struct FramedCalls {
    frame: &'static Frame,
    place: Place,
}

impl FramedCalls {
    pub(super) fn new(family: ToolFamily) -> Self {
        Self { frame: Frame::of(family), place: Place::Blank { start: true } }
    }

    /// Takes some of `text`, which is not empty.
    pub(super) fn step(&mut self, text: &str, sink: &mut Sink) -> Step {
        match &mut self.place {
            Place::Content => self.content(text, sink),
            Place::Call(call) => {
                let (taken, outcome) = match call {
                    Call::Json(object) => object.push(text, sink),
                    Call::Gemma(call) => call.push(text, sink),
                };
                match outcome {
                    Outcome::More => {}
                    Outcome::Complete => self.place = Place::AfterCall,
                    Outcome::Broken => self.place = Place::Content,
                    Outcome::NoCall => self.no_call(sink),
                }
                Step::took(taken)
            }
            Place::Blank { .. } | Place::Opened { .. } | Place::AfterCall => {
                let rest = text.trim_start();
                let space = text.len() - rest.len();
                sink.held.push_str(&text[..space]);
                if rest.is_empty() {
                    return Step::took(space);
                }
                let step = self.at_mark(rest, sink);
                Step { taken: space + step.taken, ..step }
            }
        }
    }

    /// What was held is released; white space that only stood behind calls is dropped, and so is an unfinished mark. A call
    /// that the end cuts before its name is dropped where its mark, or a call before it, says that it is one.
    pub(super) fn finish(&mut self, pending: &str, sink: &mut Sink) {
        let is_marked = sink.next_index > 0 || sink.held.trim_start().starts_with(self.frame.open);
        let is_frame = match self.place {
            _ if sink.tools.required => true,
            Place::Call(_) => is_marked && !sink.tools.names.is_empty(),
            Place::Blank { start: false } => pending.is_empty(),
            Place::AfterCall => pending.is_empty() || self.frame.close.starts_with(pending),
            _ => false,
        };
        if is_frame {
            sink.held.clear();
        } else {
            sink.release();
            sink.content(pending);
        }
        self.place = Place::Content;
    }

    fn content(&mut self, text: &str, sink: &mut Sink) -> Step {
        match find(text, self.frame.open) {
            Found::At(at) => {
                sink.content(&text[..at]);
                self.opened(sink);
                Step::took(at + self.frame.open.len())
            }
            Found::NotYet(at) => {
                sink.content(&text[..at]);
                Step::waits_after(at)
            }
        }
    }

    /// At `text`, which begins with no white space.
    fn at_mark(&mut self, text: &str, sink: &mut Sink) -> Step {
        let frame = self.frame;
        match self.place {
            Place::Blank { start } => {
                if start && frame.bare && text.starts_with(frame.first) {
                    self.place = Place::Call((frame.call)());
                } else if text.starts_with(frame.open) {
                    self.opened(sink);
                    return Step::took(frame.open.len());
                } else if may_begin_with(text, frame.open) {
                    return Step::waits_after(0);
                } else {
                    self.no_call(sink);
                }
            }
            Place::Opened { in_list: false } if frame.list && text.starts_with('[') => {
                sink.held.push('[');
                self.place = Place::Opened { in_list: true };
                return Step::took(1);
            }
            Place::Opened { in_list } if in_list == frame.list && text.starts_with(frame.first) => {
                self.place = Place::Call((frame.call)());
            }
            Place::AfterCall => return self.after_call(text, sink),
            Place::Opened { .. } | Place::Content | Place::Call(_) => self.no_call(sink),
        }
        Step::took(0)
    }

    fn after_call(&mut self, text: &str, sink: &mut Sink) -> Step {
        let frame = self.frame;
        if let Some(separator) = frame.separator.filter(|&separator| text.starts_with(separator)) {
            sink.held.push(separator);
            self.place = Place::Opened { in_list: frame.list };
            return Step::took(separator.len_utf8());
        }
        if !frame.close.is_empty() && text.starts_with(frame.close) {
            sink.held.clear();
            self.place = Place::Blank { start: false };
            return Step::took(frame.close.len());
        }
        if !frame.close.is_empty() && may_begin_with(text, frame.close) {
            return Step::waits_after(0);
        }
        self.place = match frame.bare && text.starts_with(frame.first) {
            // Llama also writes calls on lines of their own.
            true => Place::Opened { in_list: false },
            false => Place::Blank { start: false },
        };
        Step::took(0)
    }

    /// Takes `open`, which is held, with white space that may stand before it, until a call has begun.
    fn opened(&mut self, sink: &mut Sink) {
        sink.held.push_str(self.frame.open);
        self.place = Place::Opened { in_list: false };
    }

    fn no_call(&mut self, sink: &mut Sink) {
        sink.release();
        self.place = Place::Content;
    }
}
