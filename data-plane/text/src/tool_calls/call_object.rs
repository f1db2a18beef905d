//! A call as a JSON object, `{"name": …, "arguments": {…}}`, read a byte at a time. `parameters` stands for `arguments`
//! too, other names are passed over, and the order is free.
//!
//! Until the name is known to be a tool's, all of it is held back. From then on the arguments go out as they come, as
//! the model wrote them; JSON's structure is followed to find their end, and not checked beyond that.

use std::ops::Range;

use super::{Outcome, Sink};

/// Where in the object the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Brace,
    FirstKey,
    NextKey,
    Key {
        escaped: bool,
    },
    Colon,
    Value,
    Text {
        escaped: bool,
    },
    /// Inside so many brackets beyond the object's own.
    Nested {
        depth: usize,
    },
    NestedText {
        depth: usize,
        escaped: bool,
    },
    /// A number, `true`, `false` or `null`.
    Word,
    AfterValue,
}

/// What the last byte taken means to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Nothing,
    /// A key begins with it.
    KeyBegins,
    KeyEnds,
    /// A value begins with it.
    ValueBegins(u8),
    /// A text or a nested value ends with it.
    ValueEnds,
    ObjectEnds,
    /// No JSON object goes on like this; the byte is not taken.
    Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

#[derive(Debug, Clone)]
pub(super) struct CallObject {
    place: Place,
    field: Field,
    /// Where in [`Sink::held`] the key or value that is being read begins.
    start: usize,
    name: Option<String>,
    /// Where in [`Sink::held`] the arguments stand that came before the name.
    arguments: Option<Range<usize>>,
    /// The name is known and told; nothing is held any more.
    has_begun: bool,
    in_arguments: bool,
}

impl CallObject {
    pub(super) fn new() -> Self {
        Self {
            place: Place::Brace,
            field: Field::Other,
            start: 0,
            name: None,
            arguments: None,
            has_begun: false,
            in_arguments: false,
        }
    }

    /// Takes what belongs to the object, and says how many bytes that is.
    pub(super) fn push(&mut self, text: &str, sink: &mut Sink) -> (usize, Outcome) {
        let mut taken = 0;
        loop {
            let (bytes, mark) = self.scan(&text[taken..]);
            let piece = &text[taken..taken + bytes];
            taken += bytes;
            match (self.has_begun, self.in_arguments) {
                (false, _) => sink.held.push_str(piece),
                (true, true) => sink.arguments(piece),
                (true, false) => {}
            }
            let outcome = match mark {
                Mark::Nothing => return (taken, Outcome::More),
                Mark::KeyBegins => {
                    self.start = sink.held.len().saturating_sub(1);
                    Outcome::More
                }
                Mark::KeyEnds => self.key_ends(sink),
                Mark::ValueBegins(byte) => self.value_begins(byte, sink),
                Mark::ValueEnds => self.value_ends(sink),
                Mark::ObjectEnds => self.object_ends(sink),
                Mark::Wrong if self.has_begun => {
                    sink.end();
                    Outcome::Broken
                }
                Mark::Wrong => Outcome::NoCall,
            };
            if outcome != Outcome::More {
                return (taken, outcome);
            }
        }
    }

    fn key_ends(&mut self, sink: &Sink) -> Outcome {
        if self.has_begun {
            self.field = Field::Other;
            return Outcome::More;
        }
        self.field = match &sink.held[self.start..] {
            "\"name\"" => Field::Name,
            "\"arguments\"" | "\"parameters\"" => Field::Arguments,
            _ => Field::Other,
        };
        let is_second = match self.field {
            Field::Name => self.name.is_some(),
            Field::Arguments => self.arguments.is_some(),
            Field::Other => false,
        };
        if is_second { Outcome::NoCall } else { Outcome::More }
    }

    fn value_begins(&mut self, byte: u8, sink: &mut Sink) -> Outcome {
        self.start = sink.held.len().saturating_sub(1);
        match (self.field, byte, &mut self.name) {
            (Field::Other, ..) | (Field::Name, b'"', _) | (Field::Arguments, b'{', None) => Outcome::More,
            (Field::Arguments, b'{', Some(name)) => {
                sink.begin(std::mem::take(name));
                sink.arguments("{");
                (self.has_begun, self.in_arguments) = (true, true);
                Outcome::More
            }
            _ => Outcome::NoCall,
        }
    }

    fn value_ends(&mut self, sink: &mut Sink) -> Outcome {
        if self.has_begun {
            self.in_arguments = false;
            return Outcome::More;
        }
        match self.field {
            Field::Other => {}
            Field::Arguments => self.arguments = Some(self.start..sink.held.len()),
            Field::Name => {
                let name = serde_json::from_str::<String>(&sink.held[self.start..]).ok();
                let Some(name) = name.filter(|name| sink.knows(name)) else { return Outcome::NoCall };
                match self.arguments.take() {
                    None => self.name = Some(name),
                    Some(range) => {
                        let arguments = sink.held[range].to_owned();
                        sink.begin(name);
                        sink.arguments(&arguments);
                        self.has_begun = true;
                    }
                }
            }
        }
        Outcome::More
    }

    /// A call without arguments has none, which is JSON too.
    fn object_ends(&mut self, sink: &mut Sink) -> Outcome {
        if !self.has_begun {
            let Some(name) = self.name.take() else { return Outcome::NoCall };
            sink.begin(name);
            sink.arguments("{}");
        }
        sink.end();
        Outcome::Complete
    }

    /// The bytes up to and with the next one that means something.
    fn scan(&mut self, text: &str) -> (usize, Mark) {
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            match self.step(byte) {
                Mark::Nothing => {}
                Mark::Wrong => return (at, Mark::Wrong),
                mark => return (at + 1, mark),
            }
        }
        (text.len(), Mark::Nothing)
    }

    fn step(&mut self, byte: u8) -> Mark {
        let is_space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        let (next, mark) = match (self.place, byte) {
            (Place::Key { escaped: false }, b'"') => (Place::Colon, Mark::KeyEnds),
            (Place::Key { escaped }, _) => (Place::Key { escaped: !escaped && byte == b'\\' }, Mark::Nothing),
            (Place::Text { escaped: false }, b'"') => (Place::AfterValue, Mark::ValueEnds),
            (Place::Text { escaped }, _) => {
                (Place::Text { escaped: !escaped && byte == b'\\' }, Mark::Nothing)
            }
            (Place::NestedText { depth, escaped: false }, b'"') => (Place::Nested { depth }, Mark::Nothing),
            (Place::NestedText { depth, escaped }, _) => {
                (Place::NestedText { depth, escaped: !escaped && byte == b'\\' }, Mark::Nothing)
            }
            (Place::Nested { depth }, b'"') => (Place::NestedText { depth, escaped: false }, Mark::Nothing),
            (Place::Nested { depth }, b'{' | b'[') => (Place::Nested { depth: depth + 1 }, Mark::Nothing),
            (Place::Nested { depth: 1 }, b'}' | b']') => (Place::AfterValue, Mark::ValueEnds),
            (Place::Nested { depth }, b'}' | b']') => (Place::Nested { depth: depth - 1 }, Mark::Nothing),
            (Place::Nested { depth }, _) => (Place::Nested { depth }, Mark::Nothing),
            (Place::Word, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'+' | b'-' | b'E') => {
                (Place::Word, Mark::Nothing)
            }
            (Place::Word, _) if is_space => (Place::AfterValue, Mark::Nothing),
            (place, _) if is_space => (place, Mark::Nothing),
            (Place::Brace, b'{') => (Place::FirstKey, Mark::Nothing),
            (Place::FirstKey | Place::NextKey, b'"') => (Place::Key { escaped: false }, Mark::KeyBegins),
            (Place::FirstKey | Place::AfterValue | Place::Word, b'}') => (self.place, Mark::ObjectEnds),
            (Place::AfterValue | Place::Word, b',') => (Place::NextKey, Mark::Nothing),
            (Place::Colon, b':') => (Place::Value, Mark::Nothing),
            (Place::Value, b'"') => (Place::Text { escaped: false }, Mark::ValueBegins(byte)),
            (Place::Value, b'{' | b'[') => (Place::Nested { depth: 1 }, Mark::ValueBegins(byte)),
            (Place::Value, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => (Place::Word, Mark::ValueBegins(byte)),
            (place, _) => (place, Mark::Wrong),
        };
        self.place = next;
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_parser::{AnswerEvent, CallableTools};

    /// Begin, arguments and end as one line, what is held, how much was taken, and how it ended.
    fn read(text: &str) -> (String, String, usize, Outcome) {
        let tools = CallableTools { names: vec!["f".into(), "é\"".into()], parallel: true, required: false };
        let mut sink = Sink { tools, next_index: 0, held: String::new(), events: vec![] };
        let (taken, outcome) = CallObject::new().push(text, &mut sink);
        let line = sink.events.iter().map(|event| match event {
            AnswerEvent::ToolCallBegin { name, .. } => format!("{name}("),
            AnswerEvent::Arguments { piece, .. } => piece.clone(),
            AnswerEvent::ToolCallEnd { .. } => ")".to_owned(),
            other => panic!("{other:?}"),
        });
        (line.collect(), sink.held, taken, outcome)
    }

    #[test]
    fn calls_are_told_as_soon_as_they_are_known() {
        let check = |text: &str, line: &str, outcome: Outcome| {
            let (told, held, _, how) = read(text);
            assert_eq!((told.as_str(), held.as_str(), how), (line, "", outcome), "{text}");
        };
        check(
            r#"{"name": "f", "arguments": {"a": "}\"{", "b": [{}]}}"#,
            r#"f({"a": "}\"{", "b": [{}]})"#,
            Outcome::Complete,
        );
        check(r#"{"name":"f","parameters":{"#, "f({", Outcome::More);
        check(r#"{"arguments": {"a": {}}, "id": 3, "name": "f"}"#, r#"f({"a": {}})"#, Outcome::Complete);
        check(r#"{"name": "f"}"#, "f({})", Outcome::Complete);
        check(
            r#"{"type": "function", "name": "\u00e9\"", "arguments": {}, "arguments": {"b":1}}"#,
            "é\"({})",
            Outcome::Complete,
        );
        check(r#"{"name":"f","arguments":{} 3"#, "f({})", Outcome::Broken);
    }

    #[test]
    fn what_is_no_call_is_held_and_given_back() {
        let check = |text: &str, taken: usize| {
            assert_eq!(
                read(text),
                (String::new(), text[..taken].to_owned(), taken, Outcome::NoCall),
                "{text}"
            );
        };
        check(r#"x"#, 0);
        check(r#"{}"#, 2);
        check(r#"{"name": "g", "arguments": {}}"#, 12);
        check(r#"{"name": 3}"#, 10);
        check(r#"{"name": "f", "arguments": "{}"}"#, 28);
        check(r#"{"name": "f", "name": "f"}"#, 20);
        check(r#"{"arguments": {}}"#, 17);
        check(r#"{'name': 'f'}"#, 1);
        check(r#"{"a": 1, }"#, 9);
        let (told, held, taken, outcome) = read(r#"{"name": "f", "arg"#);
        assert_eq!(
            (told.as_str(), held.as_str(), taken, outcome),
            ("", r#"{"name": "f", "arg"#, 18, Outcome::More)
        );
    }
}
