//! A grammar as it was sent, held to its bounds and made into what `llguidance` compiles.

use std::collections::HashSet;

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::{GrammarError, GrammarSpec, finite, pattern};

/// A schema or a Lark grammar. OpenAI's limit on the names and constants in a schema is 120,000 characters.
pub const MAX_GRAMMAR_BYTES: usize = 128 << 10;
/// Of nested brackets. OpenAI allows 10 levels of objects, each of which is two or three.
pub const MAX_GRAMMAR_DEPTH: usize = 64;
/// In one object: each pair of patterns is tried for a name that both match.
const MAX_PATTERN_PROPERTIES: usize = 16;
/// White space between two symbols of JSON: a line break and the indentation of an answer that is deeply nested. Without a
/// bound a small model may go on with white space for ever.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,40}";
/// Formats of which `llguidance` allows more than their standards do, with what they are narrowed to: no 61st second in
/// every minute (RFC 3339, section 5.7); the lengths of the parts of an address (RFC 5321, section 4.5.3.1); the length of
/// a host's name (RFC 1123, section 2.1), by that of its labels, since to count both takes too many states.
const NARROWED_FORMATS: [(&str, &str); 4] = [
    ("time", "^[^:]*:[^:]*:[0-5]"),
    ("date-time", "^[^:]*:[^:]*:[0-5]"),
    ("email", "^[^@]{1,64}@[^@]{1,63}$"),
    ("hostname", r"^[^.]{1,30}(\.[^.]{1,30}){0,7}$"),
];
/// What these hold is no schema.
const DATA_KEYWORDS: [&str; 4] = ["const", "enum", "default", "examples"];
/// A name in an answer has one spelling, so that none passes for another: no `\u0061` for `a`. Characters that no other
/// escape stands for cannot be spelt.
const ESCAPES: &str = r#"nrbtf\""#;
/// `llguidance`'s own keyword for how a schema is compiled.
const COMPILE_OPTIONS: &str = "x-guidance";

pub(super) fn read(spec: &GrammarSpec) -> Result<TopLevelGrammar, GrammarError> {
    match spec {
        GrammarSpec::JsonObject => read(&GrammarSpec::JsonSchema(r#"{"type":"object"}"#.to_owned())),
        GrammarSpec::JsonSchema(text) => {
            let mut value = read_schema(text)?;
            default_options().apply_to(&mut value);
            Ok(TopLevelGrammar::from_json_schema(value))
        }
        GrammarSpec::Lark(text) => {
            within("the grammar's size in bytes", text.len(), MAX_GRAMMAR_BYTES)?;
            within("the grammar's depth", depth(text), MAX_GRAMMAR_DEPTH)?;
            Ok(TopLevelGrammar::from_lark(text.clone()))
        }
    }
}

/// The right side of a Lark rule that derives the instances of a schema, which is JSON text. Without `options`
/// they are spelt as an answer of the schema alone would be.
pub(crate) fn embedded(schema: &str, options: Option<&JsonCompileOptions>) -> Result<String, GrammarError> {
    let mut value = read_schema(schema)?;
    let options = options.cloned().unwrap_or_else(default_options);
    JsonCompileOptions { json_allowed_escapes: Some(ESCAPES.to_owned()), ..options }.apply_to(&mut value);
    Ok(format!("%json {value}"))
}

fn default_options() -> JsonCompileOptions {
    JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.to_owned()),
        json_allowed_escapes: Some(ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    }
}

fn read_schema(text: &str) -> Result<Value, GrammarError> {
    within("the schema's size in bytes", text.len(), MAX_GRAMMAR_BYTES)?;
    within("the schema's depth", depth(text), MAX_GRAMMAR_DEPTH)?;
    let mut value: Value =
        serde_json::from_str(text).map_err(|error| GrammarError::NotJson(error.to_string()))?;
    check(&value)?;
    if let Some(finite::Endless { needed, back_to }) = finite::endless(&value) {
        return Err(GrammarError::Endless { needed, back_to });
    }
    narrow(&mut value);
    if !value.is_object() {
        return Err(GrammarError::NotASchema);
    }
    Ok(value)
}

fn within(what: &'static str, actual: usize, limit: usize) -> Result<(), GrammarError> {
    if actual > limit { Err(GrammarError::TooLarge { what, limit, actual }) } else { Ok(()) }
}

/// Deepest nesting of brackets, those in strings and comments counted too: an upper bound.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' | b'(' => depth += 1,
            b']' | b'}' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn check(value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::Array(items) => items.iter().try_for_each(check),
        Value::Object(members) => {
            if members.contains_key(COMPILE_OPTIONS) {
                return Err(GrammarError::UnsupportedKeyword(format!("`{COMPILE_OPTIONS}`")));
            }
            if let Some(Value::Object(patterns)) = members.get("patternProperties") {
                within("the number of patternProperties", patterns.len(), MAX_PATTERN_PROPERTIES)?;
            }
            check_min_properties(members)?;
            if members.keys().any(|name| has_control(name)) || constants(members).any(holds_control) {
                let what = "`const`, `enum` or `properties` with control characters";
                return Err(GrammarError::UnsupportedKeyword(what.to_owned()));
            }
            members.values().try_for_each(check)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// A grammar cannot tell whether a name has come before. One property that is not required is one for sure, of more each
/// might be the same.
fn check_min_properties(members: &Map<String, Value>) -> Result<(), GrammarError> {
    let fewest = members.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
    let num_required = required.collect::<HashSet<_>>().len() as u64;
    if fewest > num_required + 1 {
        let what = "`minProperties` of two and more properties that are not required";
        return Err(GrammarError::UnsupportedKeyword(what.to_owned()));
    }
    Ok(())
}

fn constants(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    ["const", "enum"].into_iter().filter_map(|name| members.get(name))
}

fn holds_control(value: &Value) -> bool {
    match value {
        Value::String(text) => has_control(text),
        Value::Array(items) => items.iter().any(holds_control),
        Value::Object(members) => {
            members.keys().any(|name| has_control(name)) || members.values().any(holds_control)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether a character of a text has no spelling in [`ESCAPES`].
fn has_control(text: &str) -> bool {
    text.chars().any(|character| character.is_ascii_control() && !"\n\r\x08\t\x0C".contains(character))
}

/// Adds what [`NARROWED_FORMATS`] says, for strings, and keeps patterns to what all engines agree on.
fn narrow(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(narrow),
        Value::Object(members) => {
            let schemas = members.iter_mut().filter(|(name, _)| !DATA_KEYWORDS.contains(&name.as_str()));
            schemas.for_each(|(_, value)| narrow(value));
            if let Some(Value::String(text)) = members.get_mut("pattern") {
                *text = pattern::agreed(text);
            }
            let format = members.get("format").and_then(Value::as_str);
            let narrowed = NARROWED_FORMATS.iter().find(|(name, ..)| format == Some(name));
            if let Some((_, pattern)) = narrowed
                && let Value::Array(all_of) = members.entry("allOf").or_insert_with(|| json!([]))
            {
                let string = json!({"type": "string", "pattern": pattern});
                let other = json!({"type": ["null", "boolean", "number", "array", "object"]});
                all_of.push(json!({"anyOf": [string, other]}));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
