//! Methods of Python's `str`, `dict` and `list` that chat templates call.
//!
//! minijinja itself has none of them. What is missing here is an error when a template calls it, not a guess.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::pay;
use super::python_text::python_str;

/// minijinja calls this for a method that a value does not have itself.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => match value.as_str() {
            Some(text) => string_method(state, text, method, args),
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        },
        ValueKind::Map => map_method(value, method, args),
        ValueKind::Seq | ValueKind::Iterable => sequence_method(value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string_method(state: &State<'_, '_>, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            let strips = |c: char| characters.map_or(c.is_whitespace(), |set| set.contains(c));
            Value::from(match method {
                "strip" => text.trim_matches(strips),
                "lstrip" => text.trim_start_matches(strips),
                _ => text.trim_end_matches(strips),
            })
        }
        "startswith" => Value::from(affix(args, |affix| text.starts_with(affix))?),
        "endswith" => Value::from(affix(args, |affix| text.ends_with(affix))?),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "split" | "rsplit" => return split(state, text, method == "rsplit", args),
        "splitlines" => {
            let () = from_args(args)?;
            let lines: Vec<Value> = text.lines().map(Value::from).collect();
            pay(state, lines.len() * size_of::<Value>())?;
            Value::from(lines)
        }
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
            return replace(state, text, from, to, count).map(Value::from);
        }
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            return join(state, text, &items).map(Value::from);
        }
        "find" | "rfind" | "index" => {
            let (needle,): (&str,) = from_args(args)?;
            let at = if method == "rfind" { text.rfind(needle) } else { text.find(needle) };
            match at {
                Some(at) => Value::from(text[..at].chars().count()),
                None if method == "index" => {
                    return Err(Error::new(ErrorKind::InvalidOperation, "not found"));
                }
                None => Value::from(-1),
            }
        }
        "count" => {
            let (needle,): (&str,) = from_args(args)?;
            Value::from(text.matches(needle).count())
        }
        "upper" => no_args(args, || text.to_uppercase())?,
        "lower" => no_args(args, || text.to_lowercase())?,
        "title" => no_args(args, || title(text))?,
        "capitalize" => no_args(args, || capitalize(text))?,
        "isdigit" => no_args(args, || all(text, |c| c.is_numeric()))?,
        "isalpha" => no_args(args, || all(text, char::is_alphabetic))?,
        "isalnum" => no_args(args, || all(text, char::is_alphanumeric))?,
        "isspace" => no_args(args, || all(text, char::is_whitespace))?,
        "isupper" => no_args(args, || text.to_uppercase() == text && text.to_lowercase() != text)?,
        "islower" => no_args(args, || text.to_lowercase() == text && text.to_uppercase() != text)?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn no_args<T: Into<Value>>(args: &[Value], result: impl FnOnce() -> T) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(result().into())
}

fn all(text: &str, is: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is)
}

/// `startswith("a")` or `startswith(("a", "b"))`.
fn affix(args: &[Value], matches: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    if let Some(affix) = affix.as_str() {
        return Ok(matches(affix));
    }
    for affix in affix.try_iter()? {
        if matches(affix.as_str().ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn split(state: &State<'_, '_>, text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, max): (Option<Value>, Option<i64>) = from_args(args)?;
    let parts_limit =
        max.and_then(|max| usize::try_from(max).ok()).map_or(usize::MAX, |max| max.saturating_add(1));
    // A one-character part costs a value each; the text bounds how many there are.
    pay(state, text.len().saturating_mul(2))?;
    let mut parts: Vec<Value> = match separator.as_ref().filter(|separator| !separator.is_none()) {
        None => split_at_whitespace(text, from_right, parts_limit),
        Some(separator) => match separator.as_str() {
            None | Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "bad separator")),
            Some(separator) if from_right => text.rsplitn(parts_limit, separator).map(Value::from).collect(),
            Some(separator) => text.splitn(parts_limit, separator).map(Value::from).collect(),
        },
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts))
}

/// Parts in the order of the search.
fn split_at_whitespace(text: &str, from_right: bool, parts_limit: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end() } else { rest.trim_start() };
        if rest.is_empty() {
            return parts;
        }
        let border =
            if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(border) = border.filter(|_| parts.len() + 1 < parts_limit) else {
            parts.push(Value::from(rest));
            return parts;
        };
        let space = rest[border..].chars().next().map_or(1, char::len_utf8);
        let (part, remaining) = match from_right {
            true => (&rest[border + space..], &rest[..border]),
            false => (&rest[..border], &rest[border..]),
        };
        parts.push(Value::from(part));
        rest = remaining;
    }
}

/// Replaces the first `count` occurrences.
pub(super) fn replace(
    state: &State<'_, '_>,
    text: &str,
    from: &str,
    to: &str,
    count: usize,
) -> Result<String, Error> {
    let found = text.matches(from).take(count).count();
    pay(state, text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(text.replacen(from, to, count))
}

/// The items with `separator` between them.
pub(super) fn join(state: &State<'_, '_>, separator: &str, items: &Value) -> Result<String, Error> {
    use std::fmt::Write as _;
    let mut joined = String::new();
    for (number, item) in items.try_iter()?.enumerate() {
        super::budget::pay_for(state, &item)?;
        pay(state, separator.len() + 1)?;
        if number > 0 {
            joined.push_str(separator);
        }
        write!(joined, "{}", python_str(&item)).map_err(|_| Error::from(ErrorKind::InvalidOperation))?;
    }
    Ok(joined)
}

fn title(text: &str) -> String {
    let mut in_word = false;
    let mut titled = String::with_capacity(text.len());
    for character in text.chars() {
        match (character.is_alphabetic(), in_word) {
            (true, true) => titled.extend(character.to_lowercase()),
            (true, false) => titled.extend(character.to_uppercase()),
            (false, _) => titled.push(character),
        }
        in_word = character.is_alphabetic();
    }
    titled
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters.as_str().to_lowercase().chars()).collect()
}

fn map_method(map: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let keys = || map.try_iter().map(|keys| keys.collect::<Vec<Value>>());
    Ok(match method {
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = map.get_item(key)?;
            if found.is_undefined() { default.unwrap_or(Value::from(())) } else { found }
        }
        "keys" => {
            let () = from_args(args)?;
            Value::from(keys()?)
        }
        "values" | "items" => {
            let () = from_args(args)?;
            let mut entries = Vec::new();
            for key in keys()? {
                let value = map.get_item(&key)?;
                entries.push(if method == "items" { Value::from(vec![key, value]) } else { value });
            }
            Value::from(entries)
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn sequence_method(sequence: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    match method {
        "count" => Ok(Value::from(sequence.try_iter()?.filter(|item| item == wanted).count())),
        "index" => match sequence.try_iter()?.position(|item| &item == wanted) {
            Some(at) => Ok(Value::from(at)),
            None => Err(Error::new(ErrorKind::InvalidOperation, "not found")),
        },
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
