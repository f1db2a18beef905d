//! What the worker is told to hold an answer to: the form that was asked for, calls of tools, or either. The worker
//! compiles it, and refuses what cannot be followed by name.

use weir_schemas::rpc::worker::Grammar;
use weir_schemas::rpc::worker::grammar::Kind;
use weir_text::{GrammarError, GrammarSpec, TextModel, ToolUse};

use crate::openai::{CompletionRequest, ParameterError, ResponseFormat, ToolChoice};

/// A grammar, and the parameter that asked for it, for error objects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) grammar: Grammar,
    pub(crate) param: &'static str,
}

const FORMAT: &str = "response_format";
const TOOLS: &str = "tools";

/// `None`: the answer is free. `opens_thought`: the prompt ends inside a thought, which comes before any answer.
pub(crate) fn of(
    request: &CompletionRequest,
    text: &TextModel,
    opens_thought: bool,
) -> Result<Option<Held>, ParameterError> {
    let tools = request.tools.callable();
    let calls = |tool_use, parallel| match text.tool_grammar(tools, tool_use, parallel, opens_thought) {
        Ok(lark) => Ok(Some(held(Kind::Lark(lark), false, TOOLS))),
        Err(error) => Err(refused(TOOLS, &error)),
    };
    let parallel = request.tools.parallel;
    match request.tools.choice {
        ToolChoice::Required => return calls(ToolUse::Required, parallel),
        ToolChoice::Named(_) => return calls(ToolUse::Required, false),
        ToolChoice::Auto => {}
    }
    let (spec, budget_aware) = match &request.response_format {
        ResponseFormat::Text if tools.iter().any(|tool| tool.strict) => {
            return calls(ToolUse::Free, parallel);
        }
        ResponseFormat::Text => return Ok(None),
        ResponseFormat::JsonObject => (GrammarSpec::JsonObject, false),
        ResponseFormat::JsonSchema { schema, budget_aware } => {
            (GrammarSpec::JsonSchema(schema.clone()), *budget_aware)
        }
        ResponseFormat::Grammar(lark) => (GrammarSpec::Lark(lark.clone()), false),
    };
    if tools.is_empty() && !text.answer_form().thinks() {
        return Ok(Some(held(kind(spec), budget_aware, FORMAT)));
    }
    let Some(rule) = spec.as_rule().map_err(|error| refused(FORMAT, &error))? else {
        let hint = " as a grammar beside 'tools', or with a model that thinks";
        return Err(ParameterError::unsupported(FORMAT, hint));
    };
    if !tools.is_empty() {
        return calls(ToolUse::Or(&rule), parallel);
    }
    let lark = text.grammar_after_thought(&format!("answer: {rule}\n"), opens_thought);
    Ok(Some(held(Kind::Lark(lark), budget_aware, FORMAT)))
}

fn held(kind: Kind, budget_aware: bool, param: &'static str) -> Held {
    Held { grammar: Grammar { kind: Some(kind), budget_aware }, param }
}

fn kind(spec: GrammarSpec) -> Kind {
    match spec {
        GrammarSpec::JsonObject => Kind::JsonObject(true),
        GrammarSpec::JsonSchema(schema) => Kind::JsonSchema(schema),
        GrammarSpec::Lark(lark) => Kind::Lark(lark),
    }
}

fn refused(param: &str, error: &GrammarError) -> ParameterError {
    ParameterError::invalid(param, format!("Invalid '{param}': {error}."))
}
