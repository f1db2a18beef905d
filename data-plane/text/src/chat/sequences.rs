//! Filters over lists and strings that can make much of little, which pay as they go, and Python's slices.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{pay, pay_for};
use super::python_methods::{join, replace};

const MAX_INDENT: usize = 64;

/// Takes the place of minijinja's own slicing, which panics on an empty string with a negative step (2.24).
pub(super) const SLICE: &str = "weir.slice";

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(SLICE, slice);
    environment.add_filter("map", map);
    environment.add_filter("indent", indent);
    environment.add_filter("title", title);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("join", |state: &State<'_, '_>, items: Value, separator: Option<String>| {
        join(state, &separator.unwrap_or_default(), &items)
    });
    environment.add_filter("replace", |state: &State<'_, '_>, text: String, from: String, to: String| {
        replace(state, &text, &from, &to, usize::MAX)
    });
}

/// `map(attribute="name")` or `map("filter", …)`.
fn map(state: &State<'_, '_>, items: Value, arguments: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let attribute = options.get::<Option<String>>("attribute")?;
    let default = options.get::<Option<Value>>("default")?;
    options.assert_all_used()?;
    let mut mapped = Vec::new();
    for item in items.try_iter()? {
        let value = match (&attribute, arguments.split_first()) {
            (Some(name), None) => {
                let found = name.split('.').try_fold(item, |value, part| value.get_attr(part))?;
                if found.is_undefined() { default.clone().unwrap_or(found) } else { found }
            }
            (None, Some((filter, rest))) => {
                let name = filter.as_str().ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?;
                let call: Vec<Value> = std::iter::once(item).chain(rest.iter().cloned()).collect();
                state.apply_filter(name, &call)?
            }
            _ => return Err(Error::new(ErrorKind::MissingArgument, "map takes an attribute or a filter")),
        };
        pay_for(state, &value)?;
        mapped.push(value);
    }
    Ok(Value::from(mapped))
}

/// As Jinja does it: a capital after white space and opening brackets, all else small.
fn title(text: String) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut starts = true;
    for character in text.chars() {
        match starts {
            true => titled.extend(character.to_uppercase()),
            false => titled.extend(character.to_lowercase()),
        }
        starts = character.is_whitespace() || matches!(character, '-' | '(' | '{' | '[' | '<');
    }
    titled
}

/// For HTML, with the entities that Jinja uses.
fn escape(state: &State<'_, '_>, text: String) -> Result<String, Error> {
    pay(state, text.len().saturating_mul(5))?;
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            _ => escaped.push(character),
        }
    }
    Ok(escaped)
}

/// Indents all lines but the first; blank ones only if asked.
fn indent(
    state: &State<'_, '_>,
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get::<Option<Value>>("width")?);
    let first = first.or(options.get::<Option<bool>>("first")?).unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    let prefix = match &width {
        None => " ".repeat(4),
        Some(width) if width.kind() == ValueKind::String => width.to_string(),
        Some(width) => " ".repeat(
            width.as_usize().filter(|&width| width <= MAX_INDENT).ok_or(ErrorKind::InvalidOperation)?,
        ),
    };
    pay(state, prefix.len().saturating_mul(text.matches('\n').count() + 1))?;
    let mut indented = String::new();
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            indented.push('\n');
        }
        if (number == 0 && first) || (number > 0 && (blank || !line.is_empty())) {
            indented.push_str(&prefix);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// `value[start:stop:step]`
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let bound = |bound: Value| match bound.is_none() {
        true => Ok(None),
        false => i64::try_from(bound).map(Some),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice's step is not 0"));
    }
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        let picked = positions(characters.len(), start, stop, step).map(|at| characters[at]);
        return Ok(Value::from(picked.collect::<String>()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(Error::new(ErrorKind::InvalidOperation, "only strings and lists have slices"));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    Ok(positions(items.len(), start, stop, step).map(|at| items[at].clone()).collect())
}

/// The positions that a slice of something `length` long takes, as Python defines them.
fn positions(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_end = |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound };
    let (first, past) = match step > 0 {
        true => (
            start.map_or(0, |start| from_end(start).clamp(0, length)),
            stop.map_or(length, |stop| from_end(stop).clamp(0, length)),
        ),
        false => (
            start.map_or(length - 1, |start| from_end(start).clamp(-1, length - 1)),
            stop.map_or(-1, |stop| from_end(stop).clamp(-1, length - 1)),
        ),
    };
    let at = move |at: &i64| if step > 0 { *at < past } else { *at > past };
    std::iter::successors(Some(first), move |at| at.checked_add(step))
        .take_while(at)
        .filter_map(|at| usize::try_from(at).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_pythons() {
        let check = |length, start, stop, step, expected: &[usize]| {
            assert_eq!(
                positions(length, start, stop, step).collect::<Vec<_>>(),
                expected,
                "{start:?}:{stop:?}:{step}"
            );
        };
        check(3, None, None, 1, &[0, 1, 2]);
        check(3, Some(1), None, 1, &[1, 2]);
        check(3, None, Some(-1), 1, &[0, 1]);
        check(3, Some(-2), Some(9), 1, &[1, 2]);
        check(3, Some(2), Some(1), 1, &[]);
        check(5, None, None, 2, &[0, 2, 4]);
        check(3, None, None, -1, &[2, 1, 0]);
        check(5, Some(3), Some(0), -2, &[3, 1]);
        check(3, Some(9), Some(-9), -1, &[2, 1, 0]);
        check(0, None, None, -1, &[]);
        check(0, Some(-5), Some(5), 1, &[]);
        check(3, Some(i64::MIN), Some(i64::MAX), i64::MAX, &[0]);
        check(3, Some(i64::MAX), Some(i64::MIN), i64::MIN, &[2]);
    }
}
