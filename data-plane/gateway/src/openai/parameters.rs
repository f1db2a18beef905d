//! The top level of a JSON body as named raw values, and the tables of what this server knows of them. Every
//! parameter is read, is at a value that changes nothing, or is refused by name; none is ignored.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::parameter::{Parameter, ParameterError};

/// More than OpenAI has parameters, and than a logit bias may have tokens; stops a body of a million names early.
const MAX_PARAMETERS: usize = 1025;

/// A parameter that is not built yet: accepted only at values that mean "off".
pub(super) struct NotYet {
    pub(super) name: &'static str,
    /// Compact JSON.
    pub(super) neutral: &'static [&'static str],
    /// What to do instead, appended to the message.
    pub(super) hint: &'static str,
}

/// The parameters of one body, or of an object in it. What was not taken when [`Self::finish`] is called is unknown.
#[derive(Debug)]
pub(super) struct Parameters<'a> {
    /// Where the object is in the body, empty for the body itself.
    path: String,
    names: BTreeMap<String, &'a RawValue>,
}

impl<'a> Parameters<'a> {
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, ParameterError> {
        let text = std::str::from_utf8(body)
            .map_err(|_| ParameterError::body("The body of your request is not valid UTF-8."))?;
        serde_json::from_str(text).map_err(|error| {
            // The parser's own words may quote the body; its position does not.
            let what = match error.classify() {
                Category::Eof => "it ends too early",
                Category::Data => "it must be one JSON object in which no name stands twice",
                Category::Syntax | Category::Io => "it is not valid JSON, or nested too deeply",
            };
            ParameterError::body(&format!(
                "We could not parse the JSON body of your request: {what} (line {}, column {}).",
                error.line(),
                error.column()
            ))
        })
    }

    /// The same of an object that is at `path`.
    pub(super) fn at(self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// The whole path of a name.
    fn whole(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{}", self.path, name) }
    }

    /// A parameter that is given and not null.
    pub(super) fn take<'n>(&mut self, name: &'n str) -> Option<Parameter<'n>>
    where
        'a: 'n,
    {
        let raw: &'n RawValue = self.names.remove(name)?;
        let parameter = Parameter { name, raw };
        (!parameter.is_null()).then_some(parameter)
    }

    pub(super) fn require<'n>(&mut self, name: &'n str) -> Result<Parameter<'n>, ParameterError>
    where
        'a: 'n,
    {
        self.take(name).ok_or_else(|| ParameterError::missing(name))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.names.iter().map(|(name, raw)| (name.as_str(), *raw))
    }

    /// Refuses what is not built yet, then whatever is left.
    pub(super) fn finish(mut self, not_yet: &[&[NotYet]]) -> Result<(), ParameterError> {
        for entry in not_yet.iter().copied().flatten() {
            if let Some(parameter) = self.take(entry.name)
                && !parameter.is_one_of(entry.neutral)
            {
                return Err(ParameterError::unsupported(&self.whole(entry.name), entry.hint));
            }
        }
        match self.names.keys().next() {
            Some(name) => Err(ParameterError::unknown(&self.whole(name))),
            None => Ok(()),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Parameters<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut names = BTreeMap::new();
                while let Some((name, raw)) = map.next_entry::<String, &'de RawValue>()? {
                    if names.len() == MAX_PARAMETERS {
                        return Err(de::Error::custom("too many names"));
                    }
                    if names.insert(name, raw).is_some() {
                        return Err(de::Error::custom("a name stands twice"));
                    }
                }
                Ok(names)
            }
        }

        let names = deserializer.deserialize_map(Names)?;
        Ok(Self { path: String::new(), names })
    }
}

/// The elements of an array that has at most `max` of them; a longer one is not read further than that.
pub(super) fn elements(array: &RawValue, max: usize) -> Result<Vec<&RawValue>, ()> {
    struct Elements(usize);

    impl<'de> Visitor<'de> for Elements {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = seq.next_element()? {
                if elements.len() == self.0 {
                    return Err(de::Error::custom("too long"));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    impl<'de> DeserializeSeed<'de> for Elements {
        type Value = Vec<&'de RawValue>;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_seq(self)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_str(array.get());
    Elements(max).deserialize(&mut deserializer).map_err(|_| ())
}
