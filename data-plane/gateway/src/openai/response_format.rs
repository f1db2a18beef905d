//! `response_format`: what an answer has to be. What a schema or a grammar means is for the compiler of grammars to say.

use serde_json::value::RawValue;
use weir_text::MAX_GRAMMAR_BYTES;

use super::parameter::{Parameter, ParameterError};
use super::sampling::nested;
use super::{Input, ResponseFormat};

/// OpenAI's bound on a schema's name.
const MAX_NAME_CHARS: usize = 64;

const TYPES: &str = "'text', 'json_object', 'json_schema' and 'grammar'";

pub(super) fn response_format(parameter: Parameter<'_>) -> Result<ResponseFormat, ParameterError> {
    let mut fields = nested(parameter)?;
    let kind = fields.take("type").ok_or_else(|| ParameterError::missing("response_format.type"))?;
    let kind = kind.named("response_format.type").string()?;
    // Ours: an answer that is about to be cut may be led to a valid end.
    let budget_aware = match fields.take("budget_aware_ending") {
        Some(aware) => aware.named("response_format.budget_aware_ending").boolean()?,
        None => true,
    };
    let format = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let schema = fields.take("json_schema");
            let schema = schema.ok_or_else(|| ParameterError::missing("response_format.json_schema"))?;
            let schema = json_schema(schema.named("response_format.json_schema"))?;
            ResponseFormat::JsonSchema { schema, budget_aware }
        }
        "grammar" => {
            let grammar = fields.take("grammar");
            let grammar = grammar.ok_or_else(|| ParameterError::missing("response_format.grammar"))?;
            let grammar = grammar.named("response_format.grammar");
            check_size(&grammar)?;
            ResponseFormat::Grammar(grammar.string()?)
        }
        _ => {
            let message = format!("Invalid value for 'response_format.type'. Supported values are: {TYPES}.");
            return Err(ParameterError::invalid("response_format.type", message));
        }
    };
    fields.finish(&[])?;
    Ok(format)
}

/// The schema of `{"name": …, "schema": …}`; any object without one.
fn json_schema(parameter: Parameter<'_>) -> Result<String, ParameterError> {
    let mut fields = nested(parameter)?;
    let name_path = "response_format.json_schema.name";
    let name = fields.take("name").ok_or_else(|| ParameterError::missing(name_path))?;
    let name = name.named(name_path).label(MAX_NAME_CHARS)?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(is_word) {
        let message = format!(
            "Invalid '{name_path}': string does not match pattern. Expected a string that matches the pattern \
             '^[a-zA-Z0-9_-]+$'."
        );
        return Err(ParameterError::invalid(name_path, message));
    }
    if let Some(description) = fields.take("description") {
        description.named("response_format.json_schema.description").string()?;
    }
    // Strict or not, an answer is held to its schema.
    if let Some(strict) = fields.take("strict") {
        strict.named("response_format.json_schema.strict").boolean()?;
    }
    let schema = match fields.take("schema") {
        Some(schema) => {
            let schema = schema.named("response_format.json_schema.schema");
            check_size(&schema)?;
            object(&schema)?.get().to_owned()
        }
        None => r#"{"type":"object"}"#.to_owned(),
    };
    fields.finish(&[])?;
    Ok(schema)
}

fn object<'a>(parameter: &Parameter<'a>) -> Result<&'a RawValue, ParameterError> {
    if parameter.raw.get().starts_with('{') {
        Ok(parameter.raw)
    } else {
        Err(parameter.wrong_type("an object"))
    }
}

fn check_size(parameter: &Parameter<'_>) -> Result<(), ParameterError> {
    if parameter.raw.get().len() <= MAX_GRAMMAR_BYTES {
        return Ok(());
    }
    let name = parameter.name;
    let message = format!("Invalid '{name}': longer than {MAX_GRAMMAR_BYTES} bytes.");
    Err(ParameterError::new(name, "string_above_max_length", message))
}

/// OpenAI refuses `json_object` without the word in the conversation: a model that is not told of JSON may write white
/// space until it is cut.
pub(super) fn check_told_of_json(format: &ResponseFormat, input: &Input) -> Result<(), ParameterError> {
    let Input::Chat(messages) = input else { return Ok(()) };
    let says_json = |text: &str| text.as_bytes().windows(4).any(|word| word.eq_ignore_ascii_case(b"json"));
    if *format != ResponseFormat::JsonObject || messages.iter().any(|message| says_json(&message.content)) {
        return Ok(());
    }
    let message = "'messages' must contain the word 'json' in some form, to use 'response_format' of type \
                   'json_object'.";
    Err(ParameterError { param: Some("messages".into()), code: None, message: message.into() })
}
