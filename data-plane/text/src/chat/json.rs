//! `tojson` as Hugging Face's templates have it: Python's `json.dumps(x, ensure_ascii=False)`, without HTML escapes.

use std::io::{self, Write};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::budget::{MAX_WORK_BYTES, pay, too_large};

/// Deeper indentation is no one's style and would multiply the text.
const MAX_INDENT: usize = 16;

pub(super) fn tojson(
    state: &State<'_, '_>,
    value: Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = indent.or(options.get::<Option<Value>>("indent")?).filter(|indent| !indent.is_none());
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson(ensure_ascii=true) is not supported"));
    }
    options.assert_all_used()?;
    let mut out = Bounded(Vec::new());
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, PythonFormatter)),
        Some(indent) => {
            let width =
                indent.as_usize().filter(|&width| indent.kind() == ValueKind::Number && width <= MAX_INDENT);
            let width = width.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "tojson: bad indent"))?;
            let spaces = " ".repeat(width);
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    match written {
        Ok(()) => {
            pay(state, out.0.len())?;
            let text = String::from_utf8(out.0).expect("serde_json writes UTF-8");
            Ok(Value::from(text))
        }
        Err(error) if error.is_io() => Err(too_large()),
        Err(_) => Err(Error::new(ErrorKind::BadSerialization, "tojson: a value has no JSON form")),
    }
}

/// `json.dumps(value, ensure_ascii=False)` of what is certainly JSON.
pub(super) fn python_json(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut out, PythonFormatter))
        .expect("JSON always has a JSON form, and a vector takes it");
    String::from_utf8(out).expect("serde_json writes UTF-8")
}

/// Refuses to grow past the budget.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_WORK_BYTES {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{"a": 1, "b": [1, 2]}`
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
