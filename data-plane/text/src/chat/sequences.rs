//! Filters over lists and strings that can make much of little: they pay as they go.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{pay, pay_for};
use super::python_methods::{join, replace};

const MAX_INDENT: usize = 64;

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter("map", map);
    environment.add_filter("indent", indent);
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
        if (number > 0 || first) && (blank || !line.is_empty()) {
            indented.push_str(&prefix);
        }
        indented.push_str(line);
    }
    Ok(indented)
}
