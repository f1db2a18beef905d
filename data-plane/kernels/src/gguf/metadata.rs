//! The key-value section: typed values and getters that say what they wanted and what they found.

use std::collections::HashMap;

use super::GgufError;
use super::reader::Reader;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own scalar types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// An array of one scalar type. Arrays of arrays are not supported: no known model uses them.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own scalar types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<String>),
}

/// A key that is missing or of another type than asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// No such key.
    #[error("the model file has no `{key}`")]
    Missing {
        /// The key asked for.
        key: String,
    },
    /// The key exists with another type or out of range.
    #[error("the model file's `{key}` is not {wanted}")]
    Type {
        /// The key asked for.
        key: String,
        /// What the caller needed.
        wanted: &'static str,
    },
}

/// The key-value section of a file.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    values: HashMap<String, Value>,
}

impl Metadata {
    /// The raw value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// All keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<&str, MetadataError> {
        self.typed(
            key,
            "a text",
            |value| if let Value::Text(text) = value { Some(text.as_str()) } else { None },
        )
    }

    /// Any non-negative integer.
    pub fn unsigned(&self, key: &str) -> Result<u64, MetadataError> {
        self.typed(key, "a non-negative integer", Value::as_unsigned)
    }

    /// Any non-negative integer that fits.
    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        self.typed(key, "a non-negative 32-bit integer", |value| u32::try_from(value.as_unsigned()?).ok())
    }

    /// A floating-point number (a double is rounded).
    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        self.typed(key, "a floating-point number", |value| match value {
            Value::F32(number) => Some(*number),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to single precision is what is asked for"
            )]
            Value::F64(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn boolean(&self, key: &str) -> Result<bool, MetadataError> {
        self.typed(key, "a boolean", |value| if let Value::Bool(flag) = value { Some(*flag) } else { None })
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Result<&[String], MetadataError> {
        self.typed(key, "an array of texts", |value| match value {
            Value::Array(Array::Text(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of single-precision numbers.
    pub fn f32s(&self, key: &str) -> Result<&[f32], MetadataError> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// An array of 32-bit integers.
    pub fn i32s(&self, key: &str) -> Result<&[i32], MetadataError> {
        self.typed(key, "an array of i32", |value| match value {
            Value::Array(Array::I32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, MetadataError> {
        let value = self.values.get(key).ok_or_else(|| MetadataError::Missing { key: key.to_owned() })?;
        read(value).ok_or_else(|| MetadataError::Type { key: key.to_owned(), wanted })
    }

    pub(super) fn parse(reader: &mut Reader<'_>, count: u64) -> Result<Self, GgufError> {
        let mut values = HashMap::new();
        for _ in 0..count {
            let key = reader.name("a key")?;
            let code = reader.u32("a value's type")?;
            let value = Value::parse(reader, code)?;
            if values.contains_key(&key) {
                return Err(GgufError::Duplicate { what: "key", name: super::directory::shorten(&key) });
            }
            values.insert(key, value);
        }
        Ok(Self { values })
    }
}

impl Value {
    fn as_unsigned(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Text(_) | Self::Array(_) => None,
        }
    }

    fn parse(reader: &mut Reader<'_>, code: u32) -> Result<Self, GgufError> {
        const WHAT: &str = "a value";
        Ok(match code {
            0 => Self::U8(reader.u8(WHAT)?),
            1 => Self::I8(reader.u8(WHAT)?.cast_signed()),
            2 => Self::U16(reader.u16(WHAT)?),
            3 => Self::I16(reader.u16(WHAT)?.cast_signed()),
            4 => Self::U32(reader.u32(WHAT)?),
            5 => Self::I32(reader.u32(WHAT)?.cast_signed()),
            6 => Self::F32(f32::from_bits(reader.u32(WHAT)?)),
            7 => Self::Bool(reader.boolean()?),
            8 => Self::Text(reader.text()?),
            9 => Self::Array(Array::parse(reader)?),
            10 => Self::U64(reader.u64(WHAT)?),
            11 => Self::I64(reader.u64(WHAT)?.cast_signed()),
            12 => Self::F64(f64::from_bits(reader.u64(WHAT)?)),
            _ => return Err(GgufError::ValueType { code }),
        })
    }
}

impl Array {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, GgufError> {
        const WHAT: &str = "an array";
        let code = reader.u32(WHAT)?;
        let len = reader.u64(WHAT)?;
        Ok(match code {
            0 => Self::U8(elements(reader, len, 1, |r| r.u8(WHAT))?),
            1 => Self::I8(elements(reader, len, 1, |r| Ok(r.u8(WHAT)?.cast_signed()))?),
            2 => Self::U16(elements(reader, len, 2, |r| r.u16(WHAT))?),
            3 => Self::I16(elements(reader, len, 2, |r| Ok(r.u16(WHAT)?.cast_signed()))?),
            4 => Self::U32(elements(reader, len, 4, |r| r.u32(WHAT))?),
            5 => Self::I32(elements(reader, len, 4, |r| Ok(r.u32(WHAT)?.cast_signed()))?),
            6 => Self::F32(elements(reader, len, 4, |r| Ok(f32::from_bits(r.u32(WHAT)?)))?),
            7 => Self::Bool(elements(reader, len, 1, Reader::boolean)?),
            8 => Self::Text(elements(reader, len, 8, Reader::text)?),
            10 => Self::U64(elements(reader, len, 8, |r| r.u64(WHAT))?),
            11 => Self::I64(elements(reader, len, 8, |r| Ok(r.u64(WHAT)?.cast_signed()))?),
            12 => Self::F64(elements(reader, len, 8, |r| Ok(f64::from_bits(r.u64(WHAT)?)))?),
            _ => return Err(GgufError::ValueType { code }),
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Text(v) => v.len(),
        }
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `len` elements that take at least `element_bytes` each in the file; the length is believed only as far as the file
/// has that many bytes left, so the reservation is at most three times (an empty `String` for 8 bytes) the file.
fn elements<'a, T>(
    reader: &mut Reader<'a>,
    len: u64,
    element_bytes: usize,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, GgufError>,
) -> Result<Vec<T>, GgufError> {
    let fits = usize::try_from(len).ok().filter(|len| *len <= reader.remaining() / element_bytes);
    let Some(len) = fits else {
        let wanted = len.saturating_mul(element_bytes as u64);
        return Err(GgufError::Truncated { what: "an array", offset: reader.offset(), wanted });
    };
    let mut out = Vec::with_capacity(len);
    for _ in 0..len {
        out.push(read(reader)?);
    }
    Ok(out)
}
