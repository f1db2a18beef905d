//! Values written as Python's `str` writes them, which is what a template's output is made of.

use std::fmt::{self, Display, Formatter, Write};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::MAX_JSON_DEPTH;

/// Deeper values are errors: a namespace can contain itself. A tool's parameters, with the levels of the array around
/// them, are not so deep.
const MAX_DEPTH: usize = MAX_JSON_DEPTH + 16;

/// `str(value)`
pub(super) fn python_str(value: &Value) -> impl Display + '_ {
    struct Str<'a>(&'a Value);

    impl Display for Str<'_> {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            match (self.0.as_str(), self.0.kind()) {
                (Some(text), _) => f.write_str(text),
                (None, ValueKind::Undefined) => Ok(()),
                (None, _) => write_repr(f, self.0, 0),
            }
        }
    }

    Str(value)
}

/// `repr(value)`
fn write_repr(f: &mut Formatter<'_>, value: &Value, depth: usize) -> fmt::Result {
    if depth > MAX_DEPTH {
        return Err(fmt::Error);
    }
    if let Some(text) = value.as_str() {
        return write_quoted(f, text);
    }
    match value.kind() {
        ValueKind::Undefined => f.write_str("Undefined"),
        ValueKind::None => f.write_str("None"),
        ValueKind::Bool => f.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Seq | ValueKind::Iterable => {
            f.write_char('[')?;
            for (number, item) in value.try_iter().map_err(|_| fmt::Error)?.enumerate() {
                f.write_str(if number > 0 { ", " } else { "" })?;
                write_repr(f, &item, depth + 1)?;
            }
            f.write_char(']')
        }
        ValueKind::Map => {
            f.write_char('{')?;
            for (number, key) in value.try_iter().map_err(|_| fmt::Error)?.enumerate() {
                f.write_str(if number > 0 { ", " } else { "" })?;
                write_repr(f, &key, depth + 1)?;
                f.write_str(": ")?;
                write_repr(f, &value.get_item(&key).map_err(|_| fmt::Error)?, depth + 1)?;
            }
            f.write_char('}')
        }
        ValueKind::Plain => Err(fmt::Error),
        _ => write!(f, "{value}"),
    }
}

/// With single quotes, unless that would need a backslash and double quotes would not.
fn write_quoted(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    f.write_char(quote)?;
    for character in text.chars() {
        match character {
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\\' => f.write_str("\\\\")?,
            _ if character == quote => write!(f, "\\{quote}")?,
            '\0'..='\x1F' | '\x7F'..='\u{A0}' | '\u{AD}' => write!(f, "\\x{:02x}", u32::from(character))?,
            _ => f.write_char(character)?,
        }
    }
    f.write_char(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        let check = |value: Value, expected: &str| assert_eq!(python_str(&value).to_string(), expected);
        check(Value::from("it's"), "it's");
        check(
            Value::from(vec!["it's", "a", "\"'", "\n\x01\\", "é"]),
            r#"["it's", 'a', '"\'', '\n\x01\\', 'é']"#,
        );
        check(Value::from_serialize((true, (), 1, 2.5)), "[True, None, 1, 2.5]");
        check(Value::from_iter([("k", Value::from(vec![1]))]), "{'k': [1]}");
        check(Value::UNDEFINED, "");
    }

    #[test]
    fn depth_is_bounded() {
        let mut value = Value::from(1);
        for _ in 0..100 {
            value = Value::from(vec![value]);
        }
        let mut text = String::new();
        assert!(write!(text, "{}", python_str(&value)).is_err());
    }
}
