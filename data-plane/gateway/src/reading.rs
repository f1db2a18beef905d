//! How the answer to a request is read.

use weir_text::{AnswerParser, CallableTools, TextModel};

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
        required: matches!(request.tools.choice, ToolChoice::Required | ToolChoice::Named(_)),
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
