//! A call as FunctionGemma writes it: `call:NAME{key:<escape>text<escape>,other:[1,true]}`. Its arguments go out as JSON.
//!
//! Texts in JSON's quotes are taken as they are, so that a grammar may ask for arguments that are JSON already. A word
//! that is no number, `true`, `false` or `null` becomes a text. Source: Google's "FunctionGemma formatting and best
//! practices".

use super::{Outcome, Sink};

const HEAD: &str = "call:";
const QUOTE: &str = "<escape>";
/// OpenAI's bound on a tool's name is 64; no known name is cut by this.
const MAX_HEAD_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `call:` and the name, which are held.
    Head,
    /// Before a key, or before the end of the object.
    Key,
    /// In a key without quotes.
    BareKey,
    Colon,
    /// Before a value, or before the end of the list.
    Value,
    /// In a number or another word without quotes.
    Word,
    AfterValue,
    /// In JSON's quotes.
    Text {
        is_key: bool,
        escaped: bool,
    },
    /// In the beginning of a quote mark, so many bytes of it.
    OpeningQuote {
        is_key: bool,
        matched: usize,
    },
    /// Between two quote marks, in the beginning of the second.
    Quoted {
        is_key: bool,
        matched: usize,
    },
}

#[derive(Debug, Clone)]
pub(super) struct GemmaCall {
    place: Place,
    head: String,
    /// The key or word that is being read.
    word: String,
    /// What is open: true for an object, false for a list.
    open: Vec<bool>,
    /// JSON that is ready to go out.
    json: String,
}

impl GemmaCall {
    pub(super) fn new() -> Self {
        Self {
            place: Place::Head,
            head: String::new(),
            word: String::new(),
            open: Vec::new(),
            json: String::new(),
        }
    }

    /// Takes what belongs to the call, and says how many bytes that is.
    pub(super) fn push(&mut self, text: &str, sink: &mut Sink) -> (usize, Outcome) {
        for (at, character) in text.char_indices() {
            let outcome = match self.place {
                Place::Head => self.head(character, sink),
                _ => self.argument(character),
            };
            let after = at + character.len_utf8();
            let taken = match outcome {
                Outcome::More => continue,
                Outcome::NoCall => return (at, outcome),
                Outcome::Broken => at,
                Outcome::Complete => after,
            };
            sink.arguments(&std::mem::take(&mut self.json));
            sink.end();
            return (taken, outcome);
        }
        sink.arguments(&std::mem::take(&mut self.json));
        (text.len(), Outcome::More)
    }

    fn head(&mut self, character: char, sink: &mut Sink) -> Outcome {
        if character == '{' {
            let name = self.head.strip_prefix(HEAD).map(str::trim).filter(|name| sink.knows(name));
            let Some(name) = name.map(str::to_owned) else { return Outcome::NoCall };
            sink.begin(name);
            self.enter(true);
            return Outcome::More;
        }
        let fits = match self.head.len() < HEAD.len() {
            true => HEAD[self.head.len()..].starts_with(character),
            false => self.head.len() < MAX_HEAD_BYTES && !matches!(character, '<' | '\n'),
        };
        if !fits {
            return Outcome::NoCall;
        }
        self.head.push(character);
        sink.held.push(character);
        Outcome::More
    }

    fn argument(&mut self, character: char) -> Outcome {
        match self.place {
            Place::Text { is_key, escaped } => {
                self.json.push(character);
                self.place = match character {
                    '"' if !escaped => after_text(is_key),
                    _ => Place::Text { is_key, escaped: !escaped && character == '\\' },
                };
            }
            Place::OpeningQuote { is_key, matched } => self.opening_quote(character, is_key, matched),
            Place::Quoted { is_key, matched } => self.quoted(character, is_key, matched),
            Place::BareKey if character == ':' => {
                let key = std::mem::take(&mut self.word);
                self.json.push_str(&quoted(key.trim()));
                self.json.push(':');
                self.place = Place::Value;
            }
            Place::BareKey => self.word.push(character),
            Place::Word if matches!(character, ',' | '}' | ']') => {
                self.end_word();
                return self.after_value(character);
            }
            Place::Word => self.word.push(character),
            _ if character.is_whitespace() => {}
            Place::Key | Place::Value => return self.begin(character),
            Place::Colon if character == ':' => {
                self.json.push(':');
                self.place = Place::Value;
            }
            Place::AfterValue => return self.after_value(character),
            Place::Colon | Place::Head => return Outcome::Broken,
        }
        Outcome::More
    }

    /// The first character of a key or a value.
    fn begin(&mut self, character: char) -> Outcome {
        let is_key = self.place == Place::Key;
        match character {
            '"' => {
                self.json.push('"');
                self.place = Place::Text { is_key, escaped: false };
            }
            '<' => self.place = Place::OpeningQuote { is_key, matched: 1 },
            '{' | '[' if !is_key => self.enter(character == '{'),
            '}' | ']' => return self.leave(),
            _ => {
                self.word.push(character);
                self.place = if is_key { Place::BareKey } else { Place::Word };
            }
        }
        Outcome::More
    }

    fn opening_quote(&mut self, character: char, is_key: bool, matched: usize) {
        if !QUOTE[matched..].starts_with(character) {
            // It was a word after all.
            self.word.push_str(&QUOTE[..matched]);
            self.place = if is_key { Place::BareKey } else { Place::Word };
            self.argument(character);
            return;
        }
        self.place = match matched + 1 == QUOTE.len() {
            true => {
                self.json.push('"');
                Place::Quoted { is_key, matched: 0 }
            }
            false => Place::OpeningQuote { is_key, matched: matched + 1 },
        };
    }

    fn quoted(&mut self, character: char, is_key: bool, matched: usize) {
        if QUOTE[matched..].starts_with(character) {
            self.place = match matched + 1 == QUOTE.len() {
                true => {
                    self.json.push('"');
                    after_text(is_key)
                }
                false => Place::Quoted { is_key, matched: matched + 1 },
            };
            return;
        }
        self.json.push_str(&QUOTE[..matched]);
        // The mark's first character occurs in it once, so nothing of what did not match begins it again but this.
        let matched = usize::from(QUOTE.starts_with(character));
        if matched == 0 {
            self.json.push_str(escaped(&quoted(character.encode_utf8(&mut [0; 4]))));
        }
        self.place = Place::Quoted { is_key, matched };
    }

    fn after_value(&mut self, character: char) -> Outcome {
        match character {
            ',' => {
                self.json.push(',');
                self.place = if self.open.last() == Some(&true) { Place::Key } else { Place::Value };
                Outcome::More
            }
            '}' | ']' => self.leave(),
            _ => Outcome::Broken,
        }
    }

    fn end_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        let word = word.trim();
        match serde_json::from_str::<serde_json::Value>(word) {
            Ok(_) => self.json.push_str(word),
            Err(_) => self.json.push_str(&quoted(word)),
        }
        self.place = Place::AfterValue;
    }

    fn enter(&mut self, is_object: bool) {
        self.open.push(is_object);
        self.json.push(if is_object { '{' } else { '[' });
        self.place = if is_object { Place::Key } else { Place::Value };
    }

    /// Ends what is open, whatever the model's bracket.
    fn leave(&mut self) -> Outcome {
        let is_object = self.open.pop().unwrap_or(true);
        self.json.push(if is_object { '}' } else { ']' });
        self.place = Place::AfterValue;
        if self.open.is_empty() { Outcome::Complete } else { Outcome::More }
    }
}

fn after_text(is_key: bool) -> Place {
    if is_key { Place::Colon } else { Place::AfterValue }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text always has a JSON form")
}

/// What stands between a JSON text's quotes.
fn escaped(quoted: &str) -> &str {
    &quoted[1..quoted.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_parser::{AnswerEvent, CallableTools};

    fn read(text: &str) -> (String, Outcome) {
        let tools = CallableTools { names: vec!["f".into()], parallel: true, required: false };
        let mut sink = Sink { tools, next_index: 0, held: String::new(), events: vec![] };
        let (_, outcome) = GemmaCall::new().push(text, &mut sink);
        let arguments = sink.events.iter().map(|event| match event {
            AnswerEvent::Arguments { piece, .. } => piece.as_str(),
            _ => "",
        });
        (arguments.collect(), outcome)
    }

    #[test]
    fn arguments_become_json() {
        let check = |arguments: &str, json: &str| {
            assert_eq!(read(&format!("call:f{{{arguments}}}")), (json.to_owned(), Outcome::Complete));
            serde_json::from_str::<serde_json::Value>(json).unwrap();
        };
        check("", "{}");
        check("city:<escape>Köln, \"NRW\"\n<escape>,days:3", r#"{"city":"Köln, \"NRW\"\n","days":3}"#);
        check("a:<escape>1 <2 <esc<escape>", r#"{"a":"1 <2 <esc"}"#);
        check(
            "a:[<escape>x<escape>, -1.5,true,{b:null}], c: {}, d:[]",
            r#"{"a":["x",-1.5,true,{"b":null}],"c":{},"d":[]}"#,
        );
        check("a:some words,b:007,<escape>c<escape>:<x>", r#"{"a":"some words","b":"007","c":"<x>"}"#);
        check(r#""a": "}\"{", "b": [1, 2]"#, r#"{"a":"}\"{","b":[1,2]}"#);
    }

    #[test]
    fn what_is_no_call_and_what_breaks() {
        for text in ["cal", "call:f", "call:f{a:<escape>x"] {
            assert_eq!(read(text).1, Outcome::More, "{text}");
        }
        for text in ["x", "call f{", "call:g{", "call:\nf{", "call:<", &format!("call:{}", "f".repeat(300))] {
            assert_eq!(read(text), (String::new(), Outcome::NoCall), "{text}");
        }
        assert_eq!(read("call:f{a:<escape>x<escape>y"), (r#"{"a":"x""#.to_owned(), Outcome::Broken));
        assert_eq!(read("call:f{\"a\" 3"), (r#"{"a""#.to_owned(), Outcome::Broken));
    }
}
