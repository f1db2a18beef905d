//! One parameter of a JSON body: read with its type and range checked, and every error naming it in OpenAI's words.

use serde_json::value::RawValue;

/// Parameter names are echoed up to this length.
const MAX_ECHO_CHARS: usize = 64;
/// Metadata values and user labels are echoed nowhere, but recorded: OpenAI's bound.
pub(super) const MAX_LABEL_CHARS: usize = 512;

/// A parameter that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parameter {param:?}: {code:?}")]
pub(crate) struct ParameterError {
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    pub(crate) message: String,
}

impl ParameterError {
    pub(super) fn new(param: &str, code: &'static str, message: String) -> Self {
        Self { param: Some(param.to_owned()), code: Some(code), message }
    }

    /// The body is not what JSON or this dialect allows, whatever the parameter.
    pub(super) fn body(message: &str) -> Self {
        Self { param: None, code: None, message: message.to_owned() }
    }

    pub(crate) fn missing(param: &str) -> Self {
        let message = format!("Missing required parameter: '{param}'.");
        Self::new(param, "missing_required_parameter", message)
    }

    pub(super) fn unknown(param: &str) -> Self {
        let param: String = param.chars().filter(|c| !c.is_control()).take(MAX_ECHO_CHARS).collect();
        Self::new(&param, "unknown_parameter", format!("Unknown parameter: '{param}'."))
    }

    /// OpenAI knows it, this server does not yet.
    pub(crate) fn unsupported(param: &str, hint: &str) -> Self {
        let message = format!("Unsupported parameter: '{param}' is not supported yet{hint}.");
        Self::new(param, "unsupported_parameter", message)
    }

    pub(crate) fn invalid(param: &str, message: String) -> Self {
        Self::new(param, "invalid_value", message)
    }

    fn wrong_type(param: &str, expected: &str, raw: &RawValue) -> Self {
        let message =
            format!("Invalid type for '{param}': expected {expected}, but got {} instead.", kind(raw));
        Self::new(param, "invalid_type", message)
    }
}

/// A named value, not yet read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) raw: &'a RawValue,
}

impl<'a> Parameter<'a> {
    /// The same value under its whole path.
    pub(super) fn named<'n>(self, name: &'n str) -> Parameter<'n>
    where
        'a: 'n,
    {
        Parameter { name, raw: self.raw }
    }

    pub(super) fn is_null(&self) -> bool {
        self.raw.get() == "null"
    }

    pub(super) fn wrong_type(&self, expected: &str) -> ParameterError {
        ParameterError::wrong_type(self.name, expected, self.raw)
    }

    pub(super) fn boolean(&self) -> Result<bool, ParameterError> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("a boolean")),
        }
    }

    pub(super) fn string(&self) -> Result<String, ParameterError> {
        if !self.raw.get().starts_with('"') {
            return Err(self.wrong_type("a string"));
        }
        serde_json::from_str(self.raw.get()).map_err(|_| {
            ParameterError::invalid(self.name, format!("Invalid '{}': not a valid string.", self.name))
        })
    }

    /// A string of a bounded number of characters.
    pub(super) fn label(&self, max_chars: usize) -> Result<String, ParameterError> {
        let text = self.string()?;
        let actual = text.chars().count();
        if actual > max_chars {
            let name = self.name;
            let message = format!(
                "Invalid '{name}': string too long. Expected a string with maximum length {max_chars}, but got a \
                 string with length {actual} instead."
            );
            return Err(ParameterError::new(name, "string_above_max_length", message));
        }
        Ok(text)
    }

    pub(super) fn integer(&self, min: i64, max: i64) -> Result<i64, ParameterError> {
        let text = self.raw.get();
        if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return Err(self.wrong_type("an integer"));
        }
        if text.contains(['.', 'e', 'E']) {
            return Err(ParameterError::new(
                self.name,
                "invalid_type",
                format!(
                    "Invalid type for '{}': expected an integer, but got a decimal number instead.",
                    self.name
                ),
            ));
        }
        // JSON allows any number of digits; what no i64 holds is out of range on its side.
        let value: Option<i64> = text.parse().ok();
        let below = value.map_or(text.starts_with('-'), |value| value < min);
        let above = value.map_or(!text.starts_with('-'), |value| value > max);
        match value {
            Some(value) if !below && !above => Ok(value),
            _ => Err(self.out_of_range("integer", below, &min.to_string(), &max.to_string(), text)),
        }
    }

    pub(super) fn number(&self, min: f64, max: f64) -> Result<f64, ParameterError> {
        let text = self.raw.get();
        if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return Err(self.wrong_type("a number"));
        }
        let value: f64 = text.parse().map_err(|_| self.wrong_type("a number"))?;
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        Err(self.out_of_range("decimal", value < min, &min.to_string(), &max.to_string(), text))
    }

    fn out_of_range(&self, kind: &str, below: bool, min: &str, max: &str, got: &str) -> ParameterError {
        let name = self.name;
        let got: String = got.chars().take(32).collect();
        let (side, bound, code) = match (below, kind) {
            (true, "integer") => ("below minimum", format!(">= {min}"), "integer_below_min_value"),
            (true, _) => ("below minimum", format!(">= {min}"), "decimal_below_min_value"),
            (false, "integer") => ("above maximum", format!("<= {max}"), "integer_above_max_value"),
            (false, _) => ("above maximum", format!("<= {max}"), "decimal_above_max_value"),
        };
        let message = format!(
            "Invalid '{name}': {kind} {side} value. Expected a value {bound}, but got {got} instead."
        );
        ParameterError::new(name, code, message)
    }

    /// True where the value is one of these, compared as JSON without white space.
    pub(super) fn is_one_of(&self, neutral: &[&str]) -> bool {
        // Neutral values are a few bytes; nothing longer is compared.
        let text = self.raw.get();
        if text.len() > 256 {
            return false;
        }
        let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        neutral.contains(&compact.as_str())
    }
}

fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T>(
        json: &str,
        read: impl Fn(Parameter<'_>) -> Result<T, ParameterError>,
    ) -> Result<T, ParameterError> {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        read(Parameter { name: "p", raw: &raw })
    }

    fn code<T: std::fmt::Debug>(result: Result<T, ParameterError>) -> &'static str {
        let error = result.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("p"));
        assert!(error.message.contains("'p'"));
        error.code.unwrap()
    }

    #[test]
    fn integers_are_exact_and_bounded() {
        let integer = |json: &str| read(json, |p| p.integer(1, 100));
        assert_eq!(integer("100").unwrap(), 100);
        assert_eq!(code(integer("0")), "integer_below_min_value");
        assert_eq!(code(integer("101")), "integer_above_max_value");
        assert_eq!(code(integer(&"9".repeat(400))), "integer_above_max_value");
        assert_eq!(code(integer(&format!("-{}", "9".repeat(400)))), "integer_below_min_value");
        for bad in ["1.0", "1e2", "\"1\"", "null", "true", "[]", "{}"] {
            assert_eq!(code(integer(bad)), "invalid_type", "{bad}");
        }
    }

    #[test]
    fn numbers_are_finite_and_bounded() {
        let number = |json: &str| read(json, |p| p.number(0.0, 2.0));
        assert_eq!(number("0.5").unwrap(), 0.5);
        assert_eq!(number("2").unwrap(), 2.0);
        assert_eq!(code(number("2.0001")), "decimal_above_max_value");
        assert_eq!(code(number("-0.1")), "decimal_below_min_value");
        assert_eq!(code(number("1e999")), "decimal_above_max_value");
        assert_eq!(code(number("\"NaN\"")), "invalid_type");
    }

    #[test]
    fn strings_with_lone_surrogates_are_refused() {
        assert_eq!(code(read("\"\\ud800\"", |p| p.string())), "invalid_value");
        assert_eq!(read("\"a\\u0000b\"", |p| p.string()).unwrap(), "a\0b");
        assert_eq!(code(read("\"abcd\"", |p| p.label(3))), "string_above_max_length");
    }
}
