//! The messages of a chat: roles, content as a string or as text parts, calls of tools and their results.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use weir_text::{ChatMessage, ToolCall};

use super::parameter::{Parameter, ParameterError};
use super::parameters::{NotYet, Parameters};
use super::sampling::{bounded_array, nested};
use super::tools;

/// OpenAI's own bound on a conversation.
const MAX_MESSAGES: usize = 2048;
/// Text parts of one message.
const MAX_PARTS: usize = 256;
const MAX_NAME_CHARS: usize = 64;
/// Calls of one message.
const MAX_CALLS: usize = 128;
const MAX_CALL_ID_CHARS: usize = 256;

/// Fields of messages that are not built yet; clients echo an assistant's message with these at "nothing".
const NOT_YET: &[NotYet] = &[
    NotYet { name: "function_call", neutral: &[], hint: "; use 'tool_calls'" },
    NotYet { name: "audio", neutral: &[], hint: "" },
    NotYet { name: "refusal", neutral: &[], hint: "" },
    NotYet { name: "annotations", neutral: &["[]"], hint: "" },
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
    let messages = elements.into_iter().enumerate().map(|(at, raw)| message(at, raw));
    let messages: Vec<ChatMessage> = messages.collect::<Result<_, _>>()?;
    check_calls(&messages)?;
    Ok(messages)
}

fn message(at: usize, raw: &RawValue) -> Result<ChatMessage, ParameterError> {
    let path = format!("messages[{at}]");
    let mut fields = nested(Parameter { name: &path, raw })?;
    let role = role(&path, &mut fields)?;
    let name = label(&path, "name", MAX_NAME_CHARS, &mut fields)?;
    let (mut tool_calls, mut reasoning_content, mut tool_call_id) = (Vec::new(), None, None);
    match role {
        "assistant" => {
            if let Some(calls) = fields.take("tool_calls") {
                tool_calls = self::tool_calls(calls.named(&format!("{path}.tool_calls")))?;
            }
            if let Some(thought) = fields.take("reasoning_content") {
                reasoning_content = Some(thought.named(&format!("{path}.reasoning_content")).string()?);
            }
        }
        "tool" => {
            tool_call_id = label(&path, "tool_call_id", MAX_CALL_ID_CHARS, &mut fields)?;
            if tool_call_id.is_none() {
                return Err(ParameterError::missing(&format!("{path}.tool_call_id")));
            }
        }
        // What other roles have of these is at "nothing", or unknown.
        _ => {
            for name in ["tool_calls", "tool_call_id", "reasoning_content"] {
                if fields.take(name).is_some_and(|field| !field.is_one_of(&["[]"])) {
                    return Err(ParameterError::unknown(&format!("{path}.{name}")));
                }
            }
        }
    }
    let content = fields.take("content");
    fields.finish(&[NOT_YET])?;
    let content_path = format!("{path}.content");
    let content = match content {
        Some(content) => content_text(content.named(&content_path))?,
        None if !tool_calls.is_empty() => String::new(),
        None => return Err(ParameterError::missing(&content_path)),
    };
    Ok(ChatMessage { role: role.to_owned(), content, name, reasoning_content, tool_calls, tool_call_id })
}

fn role(path: &str, fields: &mut Parameters<'_>) -> Result<&'static str, ParameterError> {
    let path = format!("{path}.role");
    let role = fields.take("role").ok_or_else(|| ParameterError::missing(&path))?;
    match role.named(&path).string()?.as_str() {
        // Newer clients say developer for what templates call system.
        "system" | "developer" => Ok("system"),
        "user" => Ok("user"),
        "assistant" => Ok("assistant"),
        "tool" => Ok("tool"),
        "function" => Err(ParameterError::unsupported(&path, " as 'function'; use 'tool'")),
        _ => {
            let message = format!(
                "Invalid value for '{path}'. Supported values are: 'system', 'developer', 'user', 'assistant', and \
                 'tool'."
            );
            Err(ParameterError::invalid(&path, message))
        }
    }
}

fn label(
    path: &str,
    name: &str,
    max_chars: usize,
    fields: &mut Parameters<'_>,
) -> Result<Option<String>, ParameterError> {
    match fields.take(name) {
        Some(field) => field.named(&format!("{path}.{name}")).label(max_chars).map(Some),
        None => Ok(None),
    }
}

fn tool_calls(parameter: Parameter<'_>) -> Result<Vec<ToolCall>, ParameterError> {
    if !parameter.raw.get().starts_with('[') {
        return Err(parameter.wrong_type("an array of objects"));
    }
    let calls = bounded_array(parameter, MAX_CALLS)?.into_iter().enumerate();
    calls.map(|(at, raw)| tool_call(&format!("{}[{at}]", parameter.name), raw)).collect()
}

fn tool_call(path: &str, raw: &RawValue) -> Result<ToolCall, ParameterError> {
    let mut fields = nested(Parameter { name: path, raw })?;
    let id = label(path, "id", MAX_CALL_ID_CHARS, &mut fields)?;
    let id = id.ok_or_else(|| ParameterError::missing(&format!("{path}.id")))?;
    tools::is_function(path, &mut fields)?;
    let function_path = format!("{path}.function");
    let function = fields.take("function").ok_or_else(|| ParameterError::missing(&function_path))?;
    let mut function = nested(function.named(&function_path))?;
    // Streamed deltas that a client put together keep it.
    fields.take("index");
    fields.finish(&[])?;
    let name = tools::name(&function_path, &mut function)?;
    let arguments_path = format!("{function_path}.arguments");
    let arguments = function.take("arguments").ok_or_else(|| ParameterError::missing(&arguments_path))?;
    let arguments = arguments.named(&arguments_path).string()?;
    function.finish(&[])?;
    Ok(ToolCall { id, name, arguments })
}

/// Calls and results belong together, as OpenAI has it: each result answers a call of the assistant's message before
/// it, and each call has one.
fn check_calls(messages: &[ChatMessage]) -> Result<(), ParameterError> {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut answers: BTreeSet<&str> = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        if let Some(id) = &message.tool_call_id {
            if !answers.contains(id.as_str()) {
                let role = format!("messages[{at}].role");
                let message = "Invalid parameter: messages with role 'tool' must be a response to a preceding \
                               message with 'tool_calls'.";
                return Err(ParameterError { param: Some(role), code: None, message: message.into() });
            }
            open.remove(id.as_str());
            continue;
        }
        unanswered(&open, at)?;
        answers = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
        open.clone_from(&answers);
    }
    unanswered(&open, messages.len())
}

fn unanswered(open: &BTreeSet<&str>, before: usize) -> Result<(), ParameterError> {
    if open.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = open.iter().copied().collect();
    let message = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
         The following tool_call_ids did not have response messages: {}",
        ids.join(", ")
    );
    // The last message that could have been one.
    let role = format!("messages[{}].role", before.saturating_sub(1));
    Err(ParameterError { param: Some(role), code: None, message })
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
    match kind.named(&type_path).string()?.as_str() {
        "text" => {}
        known @ ("image_url" | "input_audio" | "file" | "refusal") => {
            let message = format!(
                "Invalid value for '{type_path}': '{known}' parts are not supported by this server. Supported values \
                 are: 'text'."
            );
            return Err(ParameterError::invalid(&type_path, message));
        }
        _ => {
            let message = format!("Invalid value for '{type_path}'. Supported values are: 'text'.");
            return Err(ParameterError::invalid(&type_path, message));
        }
    }
    let text_path = format!("{path}.text");
    let text = fields.take("text").ok_or_else(|| ParameterError::missing(&text_path))?;
    let text = text.named(&text_path).string()?;
    fields.finish(&[])?;
    Ok(text)
}
