//! JSON from a caller as a tree whose objects keep the order in which they were written, because models are trained
//! on schemas in their authors' order.

use std::borrow::Cow;
use std::fmt;

use minijinja::Value;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;

/// Levels of nesting in a tool's parameters or in a call's arguments. OpenAI allows ten levels of objects in a
/// schema, which are twenty of JSON; twelve are left for arrays and alternatives.
pub const MAX_JSON_DEPTH: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Boolean(bool),
    Number(Number),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// `None`: not JSON, or nested more than [`MAX_JSON_DEPTH`] deep.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let tree = Level(MAX_JSON_DEPTH).deserialize(&mut deserializer).ok()?;
        deserializer.end().ok().map(|()| tree)
    }

    /// Shows every key and text.
    pub(crate) fn visit<'a>(&'a self, see: &mut impl FnMut(&'a str)) {
        match self {
            Self::Null | Self::Boolean(_) | Self::Number(_) => {}
            Self::Text(text) => see(text),
            Self::Array(items) => items.iter().for_each(|item| item.visit(see)),
            Self::Object(entries) => entries.iter().for_each(|(key, value)| {
                see(key);
                value.visit(see);
            }),
        }
    }

    /// The same for a template, with every key and text as `put` has it.
    pub(crate) fn to_value<'a>(&'a self, put: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
        match self {
            Self::Null => Value::from(()),
            Self::Boolean(value) => Value::from(*value),
            Self::Number(number) => Value::from_serialize(number),
            Self::Text(text) => Value::from(put(text)),
            Self::Array(items) => items.iter().map(|item| item.to_value(put)).collect(),
            Self::Object(entries) => {
                entries.iter().map(|(key, value)| (put(key), value.to_value(put))).collect()
            }
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// Reads a value with so many levels below it left.
struct Level(usize);

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Level {
    fn below<E: de::Error>(&self) -> Result<usize, E> {
        self.0.checked_sub(1).ok_or_else(|| E::custom("nested too deeply"))
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Boolean(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("not finite"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Level(below))? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let below = self.below()?;
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push((key, map.next_value_seed(Level(below))?));
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_values_are_kept() {
        let text = r#"{"b":[1,-2,2.5,true,null],"a":{"z":"é","y":{}}}"#;
        let tree = Json::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&tree).unwrap(), text);
        let value = tree.to_value(&|text| Cow::Borrowed(text));
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        let mut seen = vec![];
        tree.visit(&mut |text| seen.push(text));
        assert_eq!(seen, ["b", "a", "z", "é", "y"]);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(&nested(MAX_JSON_DEPTH)).is_some());
        assert!(Json::parse(&nested(MAX_JSON_DEPTH + 1)).is_none());
        for bad in ["", "{", "1 2", "{\"a\":}", "nul", &nested(1_000_000), "{'a':1}"] {
            assert!(Json::parse(bad).is_none());
        }
    }
}
