//! Whether a schema has an instance that ends. One that needs a part of its own kind, and that another, has none: the model
//! would open brackets until it is cut.
//!
//! For each schema that is referred to it is counted up, from nothing, of which types it has instances, until no more come:
//! what is left without a type has no instance that ends. Keywords that are not looked at are taken to forbid nothing, so a
//! schema is refused only where that is certain.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Schemas, names and constants looked at, each as often as that happens: some ten times all that a schema of the largest
/// size holds. What takes longer is not refused.
const MAX_STEPS: usize = 300_000;
/// Longest reference that an error tells of.
const MAX_ECHO_CHARS: usize = 128;

/// Types of instances, one bit each.
type Types = u8;
const ARRAY: Types = 1 << 4;
const OBJECT: Types = 1 << 5;
const ALL: Types = (1 << 6) - 1;

/// Where a schema has no instance that ends: what is needed there, and what that leads back to, as references.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endless {
    pub(super) needed: String,
    pub(super) back_to: String,
}

/// Finds that a schema has no instance that ends. How deep it is nested is for the caller to bound.
pub(super) fn endless(root: &Value) -> Option<Endless> {
    let mut search = Search { root, of_references: HashMap::new(), steps_left: MAX_STEPS };
    // What has no instance even if all that it refers to had one is for the compiler to explain.
    if has_inner_base(root, true) || search.types(root) == 0 {
        return None;
    }
    let mut references = Vec::new();
    collect(root, root, &mut HashSet::new(), &mut references);
    search.of_references = references.iter().map(|(reference, _)| (*reference, 0)).collect();
    loop {
        let mut is_changed = false;
        for (reference, schema) in &references {
            let types = search.types(schema);
            is_changed |= search.of_references.insert(reference, types) != Some(types);
        }
        if !is_changed || search.steps_left == 0 {
            break;
        }
        // A chain of references is through in one round, if not in this order then in the other.
        references.reverse();
    }
    let is_endless = search.types(root) == 0 && search.steps_left > 0;
    is_endless.then(|| search.explain())
}

/// With a base of its own inside, a reference means something else there.
fn has_inner_base(value: &Value, is_root: bool) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| has_inner_base(item, false)),
        Value::Object(members) => {
            (!is_root && ["$id", "id"].iter().any(|name| members.get(*name).is_some_and(Value::is_string)))
                || members.values().any(|member| has_inner_base(member, false))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What is referred to within the document, each once.
fn collect<'a>(
    value: &'a Value,
    root: &'a Value,
    seen: &mut HashSet<&'a str>,
    found: &mut Vec<(&'a str, &'a Value)>,
) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, root, seen, found)),
        Value::Object(members) => {
            if let Some(reference) = reference(members)
                && seen.insert(reference)
                && let Some(schema) = root.pointer(&reference[1..])
            {
                found.push((reference, schema));
            }
            members.values().for_each(|member| collect(member, root, seen, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A reference into the document, by a path that is spelt out.
fn reference(members: &Map<String, Value>) -> Option<&str> {
    let reference = members.get("$ref")?.as_str()?;
    let is_plain = reference == "#" || (reference.starts_with("#/") && !reference.contains('%'));
    is_plain.then_some(reference)
}

struct Search<'a> {
    root: &'a Value,
    /// Of which types there are instances, as far as that is known. What is not in it has them all.
    of_references: HashMap<&'a str, Types>,
    steps_left: usize,
}

impl<'a> Search<'a> {
    /// Of which types a schema has instances that end, and maybe more.
    fn types(&mut self, schema: &'a Value) -> Types {
        self.spend(1);
        let members = match schema {
            Value::Bool(false) => return 0,
            Value::Object(members) if self.steps_left > 0 => members,
            _ => return ALL,
        };
        // Beside a reference, older drafts look at nothing else.
        if members.contains_key("$ref") {
            let known = reference(members).and_then(|reference| self.of_references.get(reference));
            return known.copied().unwrap_or(ALL);
        }
        let listed = ["type", "enum", "required"].iter().filter_map(|name| members.get(*name)?.as_array());
        self.spend(listed.map(Vec::len).sum());
        let mut types = stated(members);
        if let Some(Value::Array(parts)) = members.get("allOf") {
            types &= parts.iter().fold(ALL, |types, part| types & self.types(part));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(Value::Array(parts)) =
                members.get(name).filter(|parts| **parts != Value::Array(vec![]))
            {
                types &= parts.iter().fold(0, |types, part| types | self.types(part));
            }
        }
        if types & OBJECT != 0 && self.dead_property(members).is_some() {
            types &= !OBJECT;
        }
        if types & ARRAY != 0 && self.dead_item(members).is_some() {
            types &= !ARRAY;
        }
        types
    }

    fn spend(&mut self, steps: usize) {
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// A property that an object needs and that has no instance: by its path and its schema.
    fn dead_property(&mut self, members: &'a Map<String, Value>) -> Option<(String, &'a Value)> {
        let properties = members.get("properties").and_then(Value::as_object);
        let additional = members.get("additionalProperties");
        let has_patterns = members.contains_key("patternProperties");
        let required = members.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            let own = properties.and_then(|properties| properties.get(name));
            let path = || format!("/properties/{}", name.replace('~', "~0").replace('/', "~1"));
            let (path, schema) = match (own, additional) {
                (Some(own), _) => (path(), own),
                (None, Some(additional)) if !has_patterns => ("/additionalProperties".to_owned(), additional),
                (None, _) => continue,
            };
            if self.types(schema) == 0 {
                return Some((path, schema));
            }
        }
        // Of any name, but of some.
        let needs_one = members.get("minProperties").and_then(Value::as_u64).is_some_and(|fewest| fewest > 0);
        let additional = additional.filter(|_| needs_one && !has_patterns)?;
        let mut own = properties.into_iter().flat_map(Map::values);
        let is_dead = self.types(additional) == 0 && own.all(|own| self.types(own) == 0);
        is_dead.then(|| ("/additionalProperties".to_owned(), additional))
    }

    /// The same of an array's items.
    fn dead_item(&mut self, members: &'a Map<String, Value>) -> Option<(String, &'a Value)> {
        let fewest = members.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let fewest = usize::try_from(fewest).unwrap_or(usize::MAX);
        let (name, tuple, rest) = match (members.get("prefixItems"), members.get("items")) {
            (Some(Value::Array(tuple)), _) => ("prefixItems", tuple.as_slice(), "items"),
            (_, Some(Value::Array(tuple))) => ("items", tuple.as_slice(), "additionalItems"),
            _ => ("", &[][..], "items"),
        };
        for (at, schema) in tuple.iter().enumerate().take(fewest) {
            if self.types(schema) == 0 {
                return Some((format!("/{name}/{at}"), schema));
            }
        }
        let schema = members.get(rest).filter(|_| fewest > tuple.len())?;
        (self.types(schema) == 0).then(|| (format!("/{rest}"), schema))
    }

    /// Follows what is needed until it comes to where it has been.
    fn explain(&mut self) -> Endless {
        let (mut path, mut schema, mut needed) = ("#".to_owned(), self.root, "#".to_owned());
        let mut seen = HashSet::new();
        while let Value::Object(members) = schema
            && seen.insert(path.clone())
        {
            let next = match reference(members) {
                Some(reference) => {
                    self.root.pointer(&reference[1..]).map(|schema| (reference.to_owned(), schema))
                }
                None => self.dead_part(members).map(|(part, schema)| (format!("{path}{part}"), schema)),
            };
            let Some((next, part)) = next else { break };
            needed = std::mem::replace(&mut path, next);
            schema = part;
        }
        let echo = |text: String| text.chars().filter(|c| !c.is_control()).take(MAX_ECHO_CHARS).collect();
        Endless { needed: echo(needed), back_to: echo(path) }
    }

    /// A part of a schema without instances that has none either.
    fn dead_part(&mut self, members: &'a Map<String, Value>) -> Option<(String, &'a Value)> {
        for name in ["allOf", "anyOf", "oneOf"] {
            for (at, part) in members.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
                if self.types(part) == 0 {
                    return Some((format!("/{name}/{at}"), part));
                }
            }
        }
        self.dead_property(members).or_else(|| self.dead_item(members))
    }
}

/// The types that `type`, `const` and `enum` leave.
fn stated(members: &Map<String, Value>) -> Types {
    let named = match members.get("type") {
        Some(Value::String(name)) => of_name(name),
        Some(Value::Array(names)) => {
            names.iter().fold(0, |types, name| types | name.as_str().map_or(ALL, of_name))
        }
        _ => ALL,
    };
    let is_const = members.get("const").map_or(ALL, of_value);
    let is_in_enum = match members.get("enum") {
        Some(Value::Array(values)) => values.iter().fold(0, |types, value| types | of_value(value)),
        _ => ALL,
    };
    named & is_const & is_in_enum
}

fn of_name(name: &str) -> Types {
    match name {
        "null" => 1,
        "boolean" => 1 << 1,
        "number" | "integer" => 1 << 2,
        "string" => 1 << 3,
        "array" => ARRAY,
        "object" => OBJECT,
        _ => ALL,
    }
}

fn of_value(value: &Value) -> Types {
    match value {
        Value::Null => of_name("null"),
        Value::Bool(_) => of_name("boolean"),
        Value::Number(_) => of_name("number"),
        Value::String(_) => of_name("string"),
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

#[cfg(test)]
mod tests;
