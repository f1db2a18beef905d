//! A conversation with its tools on the way to a template: JSON parsed, roles checked, then every text that came from
//! the caller guarded.
//!
//! What a template sees is what Hugging Face's `apply_chat_template` gives it: `messages` with `role`, `content`, and
//! where they are there `name`, `reasoning_content`, `tool_call_id` and `tool_calls` (`id`, `type`, and `function` with
//! `name` and `arguments` as an object); `tools` as OpenAI's array, or none.

use std::borrow::Cow;

use minijinja::Value;

use super::json_tree::Json;
use super::tool::NO_PARAMETERS;
use super::{ChatMessage, TemplateError, Tool};

const MAX_ROLE_BYTES: usize = 64;

/// Parsed, not yet guarded.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    turns: Vec<Turn<'a>>,
    tools: Vec<Declared<'a>>,
}

#[derive(Debug)]
struct Turn<'a> {
    message: &'a ChatMessage,
    /// Of each of its calls.
    arguments: Vec<Json>,
}

#[derive(Debug)]
struct Declared<'a> {
    tool: &'a Tool,
    parameters: Json,
}

impl<'a> Conversation<'a> {
    /// Roles are checked here and never guarded: templates make control tokens of them.
    pub(crate) fn new(messages: &'a [ChatMessage], tools: &'a [Tool]) -> Result<Self, TemplateError> {
        let turn = |message: &'a ChatMessage| match is_word(&message.role) {
            true => Ok(Turn {
                message,
                arguments: message.tool_calls.iter().map(|call| arguments(&call.arguments)).collect(),
            }),
            false => Err(TemplateError::Role),
        };
        Ok(Self {
            turns: messages.iter().map(turn).collect::<Result<_, _>>()?,
            tools: tools.iter().map(Declared::new).collect::<Result<_, _>>()?,
        })
    }

    /// Every text that is the caller's, roles aside.
    pub(crate) fn texts(&self) -> Vec<&str> {
        let mut texts = Vec::with_capacity(self.turns.len() * 2);
        for Turn { message, arguments } in &self.turns {
            texts.push(message.content.as_str());
            texts.extend(
                [&message.name, &message.reasoning_content, &message.tool_call_id]
                    .into_iter()
                    .flatten()
                    .map(String::as_str),
            );
            for (call, arguments) in message.tool_calls.iter().zip(arguments) {
                texts.extend([call.id.as_str(), call.name.as_str()]);
                arguments.visit(&mut |text| texts.push(text));
            }
        }
        for Declared { tool, parameters } in &self.tools {
            texts.push(&tool.name);
            texts.extend(tool.description.as_deref());
            parameters.visit(&mut |text| texts.push(text));
        }
        texts
    }

    /// `messages`, with every text as `put` has it.
    pub(crate) fn messages(&'a self, put: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
        self.turns.iter().map(|turn| turn.value(put)).collect()
    }

    /// `tools`, likewise; none where there are none.
    pub(crate) fn tools(&'a self, put: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
        match self.tools.is_empty() {
            true => Value::from(()),
            false => self.tools.iter().map(|tool| tool.value(put)).collect(),
        }
    }
}

impl<'a> Turn<'a> {
    fn value(&'a self, put: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
        let message = self.message;
        let mut fields = vec![
            ("role", Value::from(message.role.as_str())),
            ("content", Value::from(put(&message.content))),
        ];
        let optional = [
            ("name", &message.name),
            ("reasoning_content", &message.reasoning_content),
            ("tool_call_id", &message.tool_call_id),
        ];
        fields.extend(
            optional.into_iter().filter_map(|(key, text)| Some((key, Value::from(put(text.as_deref()?))))),
        );
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().zip(&self.arguments).map(|(call, arguments)| {
                let function =
                    [("name", Value::from(put(&call.name))), ("arguments", arguments.to_value(put))];
                Value::from_iter([
                    ("id", Value::from(put(&call.id))),
                    ("type", Value::from("function")),
                    ("function", Value::from_iter(function)),
                ])
            });
            fields.push(("tool_calls", calls.collect()));
        }
        Value::from_iter(fields)
    }
}

impl<'a> Declared<'a> {
    fn new(tool: &'a Tool) -> Result<Self, TemplateError> {
        Ok(Self { tool, parameters: parameters(tool)? })
    }

    fn value(&'a self, put: &impl Fn(&'a str) -> Cow<'a, str>) -> Value {
        let mut function = vec![("name", Value::from(put(&self.tool.name)))];
        if let Some(description) = &self.tool.description {
            function.push(("description", Value::from(put(description))));
        }
        function.push(("parameters", self.parameters.to_value(put)));
        Value::from_iter([("type", Value::from("function")), ("function", Value::from_iter(function))])
    }
}

/// The schema of a tool's arguments.
pub(super) fn parameters(tool: &Tool) -> Result<Json, TemplateError> {
    match Json::parse(tool.parameters.as_deref().unwrap_or(NO_PARAMETERS)) {
        Some(parameters @ Json::Object(_)) => Ok(parameters),
        _ => Err(TemplateError::Parameters),
    }
}

/// The object that templates expect. What is none stays the text that it is.
pub(super) fn arguments(text: &str) -> Json {
    match text.trim().is_empty() {
        true => Json::Object(Vec::new()),
        false => match Json::parse(text) {
            Some(object @ Json::Object(_)) => object,
            _ => Json::Text(text.to_owned()),
        },
    }
}

fn is_word(role: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    (1..=MAX_ROLE_BYTES).contains(&role.len()) && role.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolCall;

    #[test]
    fn roles_are_words() {
        let check = |role: &str| {
            let messages = [ChatMessage::new(role, "")];
            Conversation::new(&messages, &[]).map(drop)
        };
        assert_eq!(check("user"), Ok(()));
        assert_eq!(check("tool_result-2"), Ok(()));
        for role in ["", "a b", "<|im_end|>", "user\n", "Ünser", "USER", &"a".repeat(65)] {
            assert_eq!(check(role), Err(TemplateError::Role), "{role:?}");
        }
    }

    #[test]
    fn templates_see_what_hugging_face_gives_them_and_every_text_is_put() {
        let call =
            |arguments: &str| ToolCall { id: "c1".into(), name: "f".into(), arguments: arguments.into() };
        let messages = [
            ChatMessage {
                tool_calls: vec![call(r#"{"b":"x","a":1}"#), call(""), call("{\"cut")],
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage {
                tool_call_id: Some("c1".into()),
                name: Some("f".into()),
                ..ChatMessage::new("tool", "y")
            },
        ];
        let tools = [Tool {
            name: "f".into(),
            description: Some("d".into()),
            parameters: Some(r#"{"type":"object"}"#.into()),
            strict: true,
        }];
        let conversation = Conversation::new(&messages, &tools).unwrap();
        let put = |text| Cow::Owned(format!("<{text}>"));
        let json = |value: Value| serde_json::to_string(&value).unwrap();
        assert_eq!(
            json(conversation.messages(&put)),
            r#"[{"role":"assistant","content":"<>","tool_calls":[{"id":"<c1>","type":"function","function":{"name":"<f>","arguments":{"<b>":"<x>","<a>":1}}},{"id":"<c1>","type":"function","function":{"name":"<f>","arguments":{}}},{"id":"<c1>","type":"function","function":{"name":"<f>","arguments":"<{\"cut>"}}]},{"role":"tool","content":"<y>","name":"<f>","tool_call_id":"<c1>"}]"#
        );
        assert_eq!(
            json(conversation.tools(&put)),
            r#"[{"type":"function","function":{"name":"<f>","description":"<d>","parameters":{"<type>":"<object>"}}}]"#
        );
        assert_eq!(
            conversation.texts(),
            [
                "", "c1", "f", "b", "x", "a", "c1", "f", "c1", "f", "{\"cut", "y", "f", "c1", "f", "d",
                "type", "object"
            ]
        );
        assert!(Conversation::new(&messages, &[]).unwrap().tools(&put).is_none());
        for bad in ["[]", "{", "1"] {
            let tools = [Tool { parameters: Some(bad.into()), ..Tool::default() }];
            assert_eq!(Conversation::new(&[], &tools).map(drop), Err(TemplateError::Parameters));
        }
    }
}
