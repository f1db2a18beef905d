//! The messages of a chat: roles, content as a string or as text parts.

use serde_json::value::RawValue;
use weir_text::ChatMessage;

use super::parameter::{Parameter, ParameterError};
use super::parameters::NotYet;
use super::sampling::{bounded_array, nested};

/// OpenAI's own bound on a conversation.
const MAX_MESSAGES: usize = 2048;
/// Text parts of one message.
const MAX_PARTS: usize = 256;
const MAX_NAME_CHARS: usize = 64;

/// Fields of messages that are not built yet; clients echo an assistant's message with these at "nothing".
const NOT_YET: &[NotYet] = &[
    NotYet { name: "tool_calls", neutral: &["[]"], hint: "" },
    NotYet { name: "tool_call_id", neutral: &[], hint: "" },
    NotYet { name: "function_call", neutral: &[], hint: "" },
    NotYet { name: "audio", neutral: &[], hint: "" },
    NotYet { name: "refusal", neutral: &[], hint: "" },
    NotYet { name: "annotations", neutral: &["[]"], hint: "" },
    NotYet { name: "reasoning_content", neutral: &[], hint: "" },
];

pub(super) fn messages(parameter: Parameter<'_>) -> Result<Vec<ChatMessage>, ParameterError> {
    if !parameter.raw.get().starts_with('[') {
        return Err(parameter.wrong_type("an array of objects"));
    }
    let elements = bounded_array(parameter, MAX_MESSAGES)?;
    if elements.is_empty() {
        let message = "Invalid 'messages': empty array. Expected an array with minimum length 1.".into();
        return Err(ParameterError::new("messages", "empty_array", message));
    }
    elements.into_iter().enumerate().map(|(at, raw)| message(at, raw)).collect()
}

fn message(at: usize, raw: &RawValue) -> Result<ChatMessage, ParameterError> {
    let path = format!("messages[{at}]");
    let mut fields = nested(Parameter { name: &path, raw })?;
    let role_path = format!("{path}.role");
    let role = fields.take("role").ok_or_else(|| ParameterError::missing(&role_path))?;
    let role = match role.named(&role_path).string()?.as_str() {
        // Newer clients say developer for what templates call system.
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" | "function" => return Err(ParameterError::unsupported(&role_path, " with the tool role")),
        _ => {
            let message = format!(
                "Invalid value for '{role_path}'. Supported values are: 'system', 'developer', 'user' and \
                 'assistant'."
            );
            return Err(ParameterError::invalid(&role_path, message));
        }
    };
    let name = match fields.take("name") {
        Some(name) => Some(name.named(&format!("{path}.name")).label(MAX_NAME_CHARS)?),
        None => None,
    };
    let content = fields.take("content");
    fields.finish(&[NOT_YET]).map_err(|error| prefixed(&path, error))?;
    let content_path = format!("{path}.content");
    let content = content.ok_or_else(|| ParameterError::missing(&content_path))?;
    let content = content_text(content.named(&content_path))?;
    Ok(ChatMessage { name, ..ChatMessage::new(role, &content) })
}

fn content_text(parameter: Parameter<'_>) -> Result<String, ParameterError> {
    match parameter.raw.get().as_bytes()[0] {
        b'"' => parameter.string(),
        b'[' => {
            let mut text = String::new();
            for (at, raw) in bounded_array(parameter, MAX_PARTS)?.into_iter().enumerate() {
                text.push_str(&part(&format!("{}[{at}]", parameter.name), raw)?);
            }
            Ok(text)
        }
        _ => Err(parameter.wrong_type("a string or an array of text parts")),
    }
}

fn part(path: &str, raw: &RawValue) -> Result<String, ParameterError> {
    let mut fields = nested(Parameter { name: path, raw })?;
    let type_path = format!("{path}.type");
    let kind = fields.take("type").ok_or_else(|| ParameterError::missing(&type_path))?;
    if kind.named(&type_path).string()? != "text" {
        let message = format!("Invalid value for '{type_path}'. Supported values are: 'text'.");
        return Err(ParameterError::invalid(&type_path, message));
    }
    let text_path = format!("{path}.text");
    let text = fields.take("text").ok_or_else(|| ParameterError::missing(&text_path))?;
    let text = text.named(&text_path).string()?;
    fields.finish(&[]).map_err(|error| prefixed(path, error))?;
    Ok(text)
}

/// Names the field by its whole path.
fn prefixed(path: &str, error: ParameterError) -> ParameterError {
    let Some(param) = error.param else { return error };
    let whole = format!("{path}.{param}");
    let message = error.message.replace(&format!("'{param}'"), &format!("'{whole}'"));
    ParameterError { param: Some(whole), message, ..error }
}
