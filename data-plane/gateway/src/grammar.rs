//! What the worker is told to hold an answer to: the form that was asked for, calls of tools, or either. The worker
//! compiles it, and refuses what cannot be followed by name.

use weir_schemas::rpc::worker::Grammar;
use weir_schemas::rpc::worker::grammar::Kind;
use weir_text::{GrammarError, GrammarSpec, TextModel, ToolUse, tool_of_rule};

use crate::openai::{CompletionRequest, ParameterError, ResponseFormat, ToolChoice};

/// A grammar, and what asked for it, for error objects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) grammar: Grammar,
    pub(crate) asked_by: AskedBy,
}

/// What a grammar was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskedBy {
    /// A `response_format` of JSON.
    Format,
    /// A grammar of the caller's own, whose rules tell the caller something.
    OwnGrammar,
    /// Tools, the first of which has this place among those that were sent, and maybe a format of JSON.
    Tools { first: usize },
}

const FORMAT: &str = "response_format";

impl AskedBy {
    /// The answer to a grammar that cannot be followed, in the caller's terms.
    pub(crate) fn refused(self, message: &str) -> ParameterError {
        let rule = GrammarError::in_rule(message);
        match (self, rule) {
            (Self::Tools { first }, Some((rule, reason))) => match tool_of_rule(rule) {
                Some(at) => {
                    let param = format!("tools[{}].function.parameters", first + at);
                    let message = format!("Invalid '{param}': {reason}.");
                    let code = Some("invalid_function_parameters");
                    ParameterError { param: Some(param), code, message }
                }
                None => invalid(FORMAT, reason),
            },
            (Self::Tools { .. }, None) => invalid("tools", message),
            (Self::Format, Some((_, reason))) => invalid(FORMAT, reason),
            (Self::Format | Self::OwnGrammar, _) => invalid(FORMAT, message),
        }
    }
}

fn invalid(param: &str, reason: &str) -> ParameterError {
    ParameterError::invalid(param, format!("Invalid '{param}': {reason}."))
}

/// `None`: the answer is free. `opens_thought`: the prompt ends inside a thought, which comes before any answer.
pub(crate) fn of(
    request: &CompletionRequest,
    text: &TextModel,
    opens_thought: bool,
) -> Result<Option<Held>, ParameterError> {
    let tools = request.tools.callable();
    let first = match &request.tools.choice {
        ToolChoice::Named(name) => request.tools.tools.iter().position(|tool| tool.name == *name),
        ToolChoice::Auto | ToolChoice::Required => None,
    };
    let asked_by = AskedBy::Tools { first: first.unwrap_or(0) };
    let calls = |tool_use, parallel| match text.tool_grammar(tools, tool_use, parallel, opens_thought) {
        Ok(lark) => Ok(Some(held(Kind::Lark(lark), false, asked_by))),
        Err(error) => Err(asked_by.refused(&error.to_string())),
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
        let asked_by = match spec {
            GrammarSpec::Lark(_) => AskedBy::OwnGrammar,
            GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_) => AskedBy::Format,
        };
        return Ok(Some(held(kind(spec), budget_aware, asked_by)));
    }
    let Some(rule) = spec.as_rule().map_err(|error| AskedBy::Format.refused(&error.to_string()))? else {
        let hint = " as a grammar beside 'tools', or with a model that thinks";
        return Err(ParameterError::unsupported(FORMAT, hint));
    };
    if !tools.is_empty() {
        return calls(ToolUse::Or(&rule), parallel);
    }
    let lark = text.grammar_after_thought(&format!("answer: {rule}\n"), opens_thought);
    Ok(Some(held(Kind::Lark(lark), budget_aware, AskedBy::Format)))
}

fn held(kind: Kind, budget_aware: bool, asked_by: AskedBy) -> Held {
    Held { grammar: Grammar { kind: Some(kind), budget_aware }, asked_by }
}

fn kind(spec: GrammarSpec) -> Kind {
    match spec {
        GrammarSpec::JsonObject => Kind::JsonObject(true),
        GrammarSpec::JsonSchema(schema) => Kind::JsonSchema(schema),
        GrammarSpec::Lark(lark) => Kind::Lark(lark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_parameter_that_asked_for_it() {
        let check = |asked_by: AskedBy, message: &str, param: &str, says: &str| {
            let error = asked_by.refused(message);
            assert_eq!(error.param.as_deref(), Some(param));
            assert_eq!(error.message, format!("Invalid '{param}': {says}."));
        };
        let (tools, in_tool) =
            (AskedBy::Tools { first: 2 }, "in the rule `arguments_1`, `x` is not supported");
        check(tools, in_tool, "tools[3].function.parameters", "`x` is not supported");
        check(tools, "in the rule `said`, `x` is not supported", "response_format", "`x` is not supported");
        check(tools, "too complex", "tools", "too complex");
        check(AskedBy::Format, "in the rule `answer`, `x` is wrong", "response_format", "`x` is wrong");
        check(
            AskedBy::OwnGrammar,
            "in the rule `a`, `x` is wrong",
            "response_format",
            "in the rule `a`, `x` is wrong",
        );
        assert_eq!(tools.refused(in_tool).code, Some("invalid_function_parameters"));
    }
}
