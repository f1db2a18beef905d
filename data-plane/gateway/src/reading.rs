//! How the answer to a request is read, and the grammar that keeps its calls readable.

use weir_text::{AnswerParser, CallableTools, TextModel, Tool, ToolUse};

use crate::openai::{CompletionRequest, Input, ToolChoice};

/// What reads the answer: a chat's, where the model may think or call. Without it all text is content.
pub(crate) fn parser(
    request: &CompletionRequest,
    text: &TextModel,
    opens_thought: bool,
) -> Option<AnswerParser> {
    let (Input::Chat(_), form) = (&request.input, text.answer_form()) else { return None };
    let callable = request.tools.callable();
    let tools = (!callable.is_empty()).then(|| CallableTools {
        names: callable.iter().map(|tool| tool.name.clone()).collect(),
        parallel: request.tools.parallel,
    });
    (form.thinks() || tools.is_some()).then(|| AnswerParser::new(form, opens_thought, tools))
}

/// Control tokens that it has to see.
pub(crate) fn shown_control_tokens(request: &CompletionRequest, text: &TextModel) -> Vec<u32> {
    match request.input {
        Input::Chat(_) => text.mark_tokens(!request.tools.tools.is_empty()),
        Input::Text(_) | Input::Tokens(_) => Vec::new(),
    }
}

/// The grammar for an answer that has to call, or whose calls have to obey strict schemas.
pub(crate) fn tool_grammar(
    request: &CompletionRequest,
    text: &TextModel,
    opens_thought: bool,
) -> Option<String> {
    let callable = request.tools.callable();
    let is_strict = |tool: &Tool| tool.strict;
    let (tool_use, parallel) = match request.tools.choice {
        ToolChoice::Required => (ToolUse::Required, request.tools.parallel),
        ToolChoice::Named(_) => (ToolUse::Required, false),
        ToolChoice::Auto if callable.iter().any(is_strict) => (ToolUse::Free, request.tools.parallel),
        ToolChoice::Auto => return None,
    };
    Some(text.tool_grammar(callable, tool_use, parallel, opens_thought))
}
