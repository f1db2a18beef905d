//! Parts what a model thinks from what it says.
//!
//! A thought stands at the start of an answer, between the model's two marks; or the prompt already opened it. White
//! space around the marks is part of neither. What is not at the start is content, whatever it contains.

use std::borrow::Cow;

use crate::answer_form::ThinkMarks;
use crate::answer_parser::AnswerEvent;
use crate::marks::{Found, find, may_begin_with};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Only white space so far.
    Start,
    /// Behind the opening mark, before anything but white space. Where the prompt has it, some models repeat it.
    Opened {
        may_repeat: bool,
    },
    Thinking,
    /// Behind the closing mark, before anything but white space.
    Closed,
    Saying,
}

/// Reads the thought of one answer.
#[derive(Debug, Clone)]
pub(crate) struct ThoughtParser {
    marks: ThinkMarks,
    place: Place,
    /// White space that may turn out to stand beside a mark.
    space: String,
    /// What follows it and may still become a mark.
    held: String,
}

impl ThoughtParser {
    pub(crate) fn new(marks: ThinkMarks, is_open: bool) -> Self {
        let place = if is_open { Place::Opened { may_repeat: true } } else { Place::Start };
        Self { marks, place, space: String::new(), held: String::new() }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.place, Place::Opened { .. } | Place::Thinking)
    }

    /// Takes the next piece, appends what is thought, and returns what is said.
    pub(crate) fn push<'a>(&mut self, text: &'a str, events: &mut Vec<AnswerEvent>) -> Cow<'a, str> {
        if self.place == Place::Saying {
            return Cow::Borrowed(text);
        }
        let mut rest = std::mem::take(&mut self.held);
        rest.push_str(text);
        let mut rest = rest.as_str();
        while self.place != Place::Saying {
            let before = self.place;
            rest = self.step(rest, events);
            if self.place == before {
                self.held = rest.to_owned();
                return Cow::Borrowed("");
            }
        }
        Cow::Owned(std::mem::take(&mut self.space) + rest)
    }

    /// The end of the text. Returns what is said after all.
    pub(crate) fn finish(&mut self, events: &mut Vec<AnswerEvent>) -> String {
        let (space, held) = (std::mem::take(&mut self.space), std::mem::take(&mut self.held));
        match self.place {
            Place::Start => return space + &held,
            Place::Opened { .. } => reason(&held, events),
            Place::Thinking => reason(&(space + &held), events),
            Place::Closed | Place::Saying => {}
        }
        String::new()
    }

    /// Takes what it can of `text` and returns the rest. It goes to the next place, or needs more text.
    fn step<'a>(&mut self, text: &'a str, events: &mut Vec<AnswerEvent>) -> &'a str {
        if self.place == Place::Thinking {
            return self.think(text, events);
        }
        let (space, rest) = text.split_at(text.len() - text.trim_start().len());
        if self.place == Place::Start {
            self.space.push_str(space);
        }
        let open = self.marks.open;
        let (next, rest) = match (self.place, rest.strip_prefix(open)) {
            (Place::Start | Place::Opened { may_repeat: true }, Some(thought)) => {
                self.space.clear();
                (Place::Opened { may_repeat: false }, thought)
            }
            _ if rest.is_empty() => (self.place, rest),
            (Place::Start | Place::Opened { may_repeat: true }, None) if may_begin_with(rest, open) => {
                (self.place, rest)
            }
            (Place::Opened { .. }, _) => (Place::Thinking, rest),
            _ => (Place::Saying, rest),
        };
        self.place = next;
        rest
    }

    /// Emits the thought up to its end, or to what may be its end.
    fn think<'a>(&mut self, text: &'a str, events: &mut Vec<AnswerEvent>) -> &'a str {
        let found = find(text, self.marks.close);
        let (Found::At(end) | Found::NotYet(end)) = found;
        let (thought, space) = text[..end].split_at(text[..end].trim_end().len());
        if !thought.is_empty() {
            reason(&std::mem::take(&mut self.space), events);
            reason(thought, events);
        }
        self.space.push_str(space);
        match found {
            Found::NotYet(at) => &text[at..],
            Found::At(at) => {
                self.space.clear();
                self.place = Place::Closed;
                &text[at + self.marks.close.len()..]
            }
        }
    }
}

fn reason(text: &str, events: &mut Vec<AnswerEvent>) {
    if !text.is_empty() {
        AnswerEvent::Reasoning(text.to_owned()).append_to(events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: ThinkMarks = ThinkMarks { open: "<think>", close: "</think>" };

    /// What is thought and what is said.
    fn read(is_open: bool, pieces: &[&str]) -> (String, String) {
        let mut parser = ThoughtParser::new(MARKS, is_open);
        let mut events = vec![];
        let mut said: String =
            pieces.iter().map(|piece| parser.push(piece, &mut events).into_owned()).collect();
        said += &parser.finish(&mut events);
        let thoughts = events.into_iter().map(|event| match event {
            AnswerEvent::Reasoning(text) => text,
            other => panic!("{other:?}"),
        });
        (thoughts.collect(), said)
    }

    #[test]
    fn table() {
        let check = |is_open: bool, text: &str, thought: &str, said: &str| {
            let expected = (thought.to_owned(), said.to_owned());
            assert_eq!(read(is_open, &[text]), expected, "{text:?}");
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(read(is_open, &letters), expected, "{text:?} by the letter");
        };
        check(false, "<think>\nwhy not\n</think>\n\nYes.\n", "why not", "Yes.\n");
        check(false, " \n<think></think>Yes", "", "Yes");
        check(false, "Yes <think>x</think>", "", "Yes <think>x</think>");
        check(false, "  <thin", "", "  <thin");
        check(false, "", "", "");
        check(false, "<think>cut </thi", "cut </thi", "");
        check(false, "<think>a\n\nb </think", "a\n\nb </think", "");
        check(true, "why\n</think>\nYes </think>", "why", "Yes </think>");
        check(true, "<think>\nwhy</think>Yes", "why", "Yes");
        check(true, "\n <thin", "<thin", "");
        check(true, "为什么</think>因为", "为什么", "因为");
        check(true, "\n</think>\n", "", "");
    }

    #[test]
    fn a_thought_is_known_as_one_while_it_lasts() {
        let mut parser = ThoughtParser::new(MARKS, false);
        let mut events = vec![];
        let mut states = vec![];
        for piece in ["<think>", "why", "</think>", "\n", "Yes"] {
            parser.push(piece, &mut events);
            states.push(parser.is_thinking());
        }
        assert_eq!(states, [true, true, false, false, false]);
    }
}
