//! Tools for a model whose template knows none: the rendering that NousResearch's Hermes models introduced and Qwen's
//! share, written into the messages themselves.
//!
//! - The tools, as OpenAI's array one a line in `<tools>`, follow the system message, or are one; for a template that
//!   refuses system messages they stand before the first user's message.
//! - An assistant's calls follow its content, each as `<tool_call>`, a line `{"name": ..., "arguments": {...}}`, and
//!   `</tool_call>`.
//! - Results of tools, each in `<tool_response>`, are one message of the user's for all that follow each other.
//!
//! A model that was trained on no tools follows this as far as it follows instructions; `tool_choice` and `strict`
//! are held by the grammar whatever it was trained on.

use std::borrow::Cow;

use serde::Serialize;

use super::conversation::{arguments, parameters};
use super::json::python_json;
use super::json_tree::Json;
use super::{ChatMessage, TemplateError, Tool, ToolCall};

/// One line of `<tools>`, in OpenAI's shape.
#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    parameters: Json,
}

#[derive(Serialize)]
struct Call<'a> {
    name: &'a str,
    arguments: Json,
}

/// Where the tools are declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    System,
    FirstUser,
}

/// The conversation without tools in it, for a template that knows none. Borrowed where there were none.
pub(crate) fn rewrite<'a>(
    messages: &'a [ChatMessage],
    tools: &[Tool],
    place: Place,
) -> Result<Cow<'a, [ChatMessage]>, TemplateError> {
    let is_of_tools = |message: &ChatMessage| is_result(message) || !message.tool_calls.is_empty();
    if tools.is_empty() && !messages.iter().any(is_of_tools) {
        return Ok(Cow::Borrowed(messages));
    }
    let mut rewritten: Vec<ChatMessage> = Vec::with_capacity(messages.len() + 1);
    let mut follows_result = false;
    for message in messages {
        let is_result = is_result(message);
        match rewritten.last_mut().filter(|_| is_result && follows_result) {
            Some(before) => {
                before.content.push('\n');
                before.content.push_str(&response(&message.content));
            }
            None if is_result => rewritten.push(ChatMessage::new("user", &response(&message.content))),
            None => rewritten.push(ChatMessage {
                content: with_calls(&message.content, &message.tool_calls),
                tool_calls: Vec::new(),
                tool_call_id: None,
                ..message.clone()
            }),
        }
        follows_result = is_result;
    }
    if !tools.is_empty() {
        declare(&mut rewritten, declaration(tools)?, place);
    }
    Ok(Cow::Owned(rewritten))
}

/// A message with the role alone, which answers no call, is the template's business.
fn is_result(message: &ChatMessage) -> bool {
    message.role == "tool" && message.tool_call_id.is_some()
}

fn declare(messages: &mut Vec<ChatMessage>, declaration: String, place: Place) {
    let first_of = |role: &str| messages.iter().position(|message| message.role == role);
    match place {
        Place::System if first_of("system") == Some(0) => {
            let system = &mut messages[0].content;
            *system = format!("{system}\n\n{declaration}");
        }
        Place::System => messages.insert(0, ChatMessage::new("system", &declaration)),
        Place::FirstUser => match first_of("user") {
            Some(at) => messages[at].content = format!("{declaration}\n\n{}", messages[at].content),
            None => messages.insert(0, ChatMessage::new("user", &declaration)),
        },
    }
}

fn declaration(tools: &[Tool]) -> Result<String, TemplateError> {
    let mut text =
        "You can call functions. Their signatures, in JSON, stand between <tools> and </tools>:\n<tools>\n"
            .to_owned();
    for tool in tools {
        let parameters = parameters(tool)?;
        let function = Function { name: &tool.name, description: tool.description.as_deref(), parameters };
        text.push_str(&python_json(&Line { r#type: "function", function }));
        text.push('\n');
    }
    text.push_str(
        "</tools>\n\nTo call a function, write its name and its arguments as one JSON object between <tool_call> and \
         </tool_call>, once for each call:\n<tool_call>\n{\"name\": <function name>, \"arguments\": <object of \
         arguments>}\n</tool_call>",
    );
    Ok(text)
}

fn with_calls(content: &str, calls: &[ToolCall]) -> String {
    let mut text = content.to_owned();
    for call in calls {
        if !text.is_empty() {
            text.push('\n');
        }
        let json = python_json(&Call { name: &call.name, arguments: arguments(&call.arguments) });
        text.push_str("<tool_call>\n");
        text.push_str(&json);
        text.push_str("\n</tool_call>");
    }
    text
}

fn response(content: &str) -> String {
    format!("<tool_response>\n{content}\n</tool_response>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() }
    }

    #[test]
    fn tools_calls_and_results_become_text() {
        let messages = [
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", "Weather?"),
            ChatMessage {
                tool_calls: vec![call("w", r#"{"city":"Köln"}"#), call("w", "{}")],
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage { tool_call_id: Some("c".into()), ..ChatMessage::new("tool", "rain") },
            ChatMessage { tool_call_id: Some("c".into()), ..ChatMessage::new("tool", "sun") },
        ];
        let tools = [Tool { name: "w".into(), description: Some("Weather".into()), ..Tool::default() }];
        let rewritten = rewrite(&messages, &tools, Place::System).unwrap();
        let contents: Vec<(&str, &str)> =
            rewritten.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        assert!(contents[0].1.starts_with("Be brief.\n\nYou can call functions."));
        assert!(contents[0].1.contains(
            "\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"w\", \"description\": \"Weather\", \
             \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n</tools>\n"
        ));
        assert_eq!(
            contents[1..],
            [
                ("user", "Weather?"),
                (
                    "assistant",
                    "<tool_call>\n{\"name\": \"w\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n\
                     <tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>"
                ),
                ("user", "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"),
            ]
        );
        assert!(
            rewritten.iter().all(|message| message.tool_calls.is_empty() && message.tool_call_id.is_none())
        );
    }

    #[test]
    fn without_a_system_message_the_tools_are_one_and_without_tools_nothing_changes() {
        let messages = [ChatMessage::new("user", "hi")];
        let tools = [Tool { name: "w".into(), ..Tool::default() }];
        let rewritten = rewrite(&messages, &tools, Place::System).unwrap();
        assert_eq!((rewritten.len(), rewritten[0].role.as_str(), &rewritten[1]), (2, "system", &messages[0]));
        let rewritten = rewrite(&messages, &tools, Place::FirstUser).unwrap();
        assert_eq!((rewritten.len(), rewritten[0].role.as_str()), (1, "user"));
        assert!(rewritten[0].content.ends_with("</tool_call>\n\nhi"));
        assert!(
            matches!(rewrite(&messages, &[], Place::System).unwrap(), Cow::Borrowed(same) if same == messages)
        );
    }
}
