//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat.

use serde_json::value::RawValue;
use weir_text::{MAX_JSON_DEPTH, Tool};

use super::parameter::{Parameter, ParameterError};
use super::parameters::Parameters;
use super::sampling::{bounded_array, nested};

/// OpenAI's bounds.
const MAX_TOOLS: usize = 128;
const MAX_NAME_CHARS: usize = 64;
/// OpenAI takes 1,024; the tools of MCP servers say more of themselves.
const MAX_DESCRIPTION_CHARS: usize = 8192;
/// Of one tool's parameters, as JSON text.
const MAX_PARAMETERS_BYTES: usize = 64 << 10;
/// Of all tools: what every prompt of the conversation carries.
const MAX_TOTAL_BYTES: usize = 512 << 10;

/// How far the model has to call a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    /// At least one, whichever.
    Required,
    /// This one.
    Named(String),
}

/// The tools that the model may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolsAsked {
    /// Empty: there are none, or none may be called.
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// More than one call in one answer.
    pub(crate) parallel: bool,
}

impl ToolsAsked {
    /// Those that may be called.
    pub(crate) fn callable(&self) -> &[Tool] {
        let ToolChoice::Named(name) = &self.choice else { return &self.tools };
        let at = self.tools.iter().position(|tool| tool.name == *name);
        at.map_or(&[], |at| &self.tools[at..=at])
    }
}

pub(super) fn tools(parameters: &mut Parameters<'_>) -> Result<ToolsAsked, ParameterError> {
    let tools = match parameters.take("tools") {
        Some(tools) => declared(tools)?,
        None => Vec::new(),
    };
    let choice = parameters.take("tool_choice").map(choice).transpose()?;
    let parallel = parameters.take("parallel_tool_calls").map(|parallel| parallel.boolean()).transpose()?;
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(None) => return Ok(ToolsAsked::default()),
        Some(Some(ToolChoice::Named(name))) if !tools.iter().any(|tool| tool.name == name) => {
            let message = "Invalid value for 'tool_choice': the function that it names is not among 'tools'.";
            return Err(ParameterError::invalid("tool_choice", message.into()));
        }
        Some(Some(ToolChoice::Required)) if tools.is_empty() => {
            let message =
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.";
            return Err(ParameterError::invalid("tool_choice", message.into()));
        }
        Some(Some(choice)) => choice,
    };
    Ok(ToolsAsked { tools, choice, parallel: parallel.unwrap_or(true) })
}

fn declared(parameter: Parameter<'_>) -> Result<Vec<Tool>, ParameterError> {
    if !parameter.raw.get().starts_with('[') {
        return Err(parameter.wrong_type("an array of objects"));
    }
    let tools = bounded_array(parameter, MAX_TOOLS)?;
    let tools = tools.into_iter().enumerate().map(|(at, raw)| tool(&format!("tools[{at}]"), raw));
    let tools: Vec<Tool> = tools.collect::<Result<_, _>>()?;
    let bytes = |tool: &Tool| {
        let texts = [&tool.description, &tool.parameters].into_iter().flatten();
        tool.name.len() + texts.map(String::len).sum::<usize>()
    };
    let total: usize = tools.iter().map(bytes).sum();
    if total > MAX_TOTAL_BYTES {
        let message =
            format!("Invalid 'tools': {total} bytes of tools, at most {MAX_TOTAL_BYTES} are allowed.");
        return Err(ParameterError::invalid("tools", message));
    }
    Ok(tools)
}

fn tool(path: &str, raw: &RawValue) -> Result<Tool, ParameterError> {
    let mut fields = nested(Parameter { name: path, raw })?;
    is_function(path, &mut fields)?;
    let function_path = format!("{path}.function");
    let function = fields.take("function").ok_or_else(|| ParameterError::missing(&function_path))?;
    let mut function = nested(function.named(&function_path))?;
    fields.finish(&[])?;
    let name = name(&function_path, &mut function)?;
    let description = match function.take("description") {
        Some(text) => Some(text.named(&format!("{function_path}.description")).label(MAX_DESCRIPTION_CHARS)?),
        None => None,
    };
    let parameters = match function.take("parameters") {
        Some(schema) => Some(schema_text(&name, schema.named(&format!("{function_path}.parameters")))?),
        None => None,
    };
    let strict = match function.take("strict") {
        Some(strict) => strict.named(&format!("{function_path}.strict")).boolean()?,
        None => false,
    };
    function.finish(&[])?;
    Ok(Tool { name, description, parameters, strict })
}

/// The only type of tool, and of a call, that there is here.
pub(super) fn is_function(path: &str, fields: &mut Parameters<'_>) -> Result<(), ParameterError> {
    let type_path = format!("{path}.type");
    let kind = fields.take("type").ok_or_else(|| ParameterError::missing(&type_path))?;
    if kind.named(&type_path).string()? != "function" {
        let message = format!("Invalid value for '{type_path}'. Supported values are: 'function'.");
        return Err(ParameterError::invalid(&type_path, message));
    }
    Ok(())
}

/// A function's `name`.
pub(super) fn name(path: &str, fields: &mut Parameters<'_>) -> Result<String, ParameterError> {
    let path = format!("{path}.name");
    let name = fields.take("name").ok_or_else(|| ParameterError::missing(&path))?;
    let name = name.named(&path).label(MAX_NAME_CHARS)?;
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_good) {
        let message = format!(
            "Invalid '{path}': string does not match pattern. Expected a string that matches the pattern \
             '^[a-zA-Z0-9_-]+$'."
        );
        return Err(ParameterError::invalid(&path, message));
    }
    Ok(name)
}

/// A schema's own meaning is the grammar's to check, where it is enforced.
fn schema_text(function: &str, schema: Parameter<'_>) -> Result<String, ParameterError> {
    let text = schema.raw.get();
    let path = schema.name;
    if text.len() > MAX_PARAMETERS_BYTES {
        let message = format!(
            "Invalid '{path}': a schema of {} bytes, at most {MAX_PARAMETERS_BYTES} are allowed.",
            text.len()
        );
        return Err(ParameterError::invalid(path, message));
    }
    if is_deeper(text, MAX_JSON_DEPTH) {
        let message = format!("Invalid '{path}': nested more than {MAX_JSON_DEPTH} levels deep.");
        return Err(ParameterError::invalid(path, message));
    }
    let mut fields = nested(schema)?;
    if let Some(kind) = fields.take("type")
        && kind.raw.get() != "\"object\""
    {
        let kind: String = kind.raw.get().chars().take(32).collect();
        let message = format!(
            "Invalid schema for function '{function}': schema must be a JSON Schema of 'type: \"object\"', got 'type: \
             {kind}'."
        );
        return Err(ParameterError::new(path, "invalid_function_parameters", message));
    }
    Ok(text.to_owned())
}

/// Whether JSON text has brackets nested more than `limit` deep.
fn is_deeper(text: &str, limit: usize) -> bool {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

/// `None`: no tool may be called.
fn choice(parameter: Parameter<'_>) -> Result<Option<ToolChoice>, ParameterError> {
    if parameter.raw.get().starts_with('{') {
        let mut fields = nested(parameter)?;
        is_function("tool_choice", &mut fields)?;
        let path = "tool_choice.function";
        let function = fields.take("function").ok_or_else(|| ParameterError::missing(path))?;
        let mut function = nested(function.named(path))?;
        fields.finish(&[])?;
        let name = name(path, &mut function)?;
        function.finish(&[])?;
        return Ok(Some(ToolChoice::Named(name)));
    }
    if !parameter.raw.get().starts_with('"') {
        return Err(parameter.wrong_type("one of a string or an object"));
    }
    match parameter.string()?.as_str() {
        "none" => Ok(None),
        "auto" => Ok(Some(ToolChoice::Auto)),
        "required" => Ok(Some(ToolChoice::Required)),
        _ => {
            let message =
                "Invalid value for 'tool_choice'. Supported values are: 'none', 'auto', and 'required'.";
            Err(ParameterError::invalid("tool_choice", message.into()))
        }
    }
}

#[cfg(test)]
mod tests;
