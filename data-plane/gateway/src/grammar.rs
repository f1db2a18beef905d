//! What the worker is told to hold an answer to. The worker compiles it, and refuses what cannot be followed by name.

use weir_schemas::rpc::worker::Grammar;
use weir_schemas::rpc::worker::grammar::Kind;

use crate::openai::ResponseFormat;

/// A whole answer in the form that was asked for.
pub(crate) fn of_format(format: &ResponseFormat) -> Option<Grammar> {
    let (kind, budget_aware) = match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => (Kind::JsonObject(true), false),
        ResponseFormat::JsonSchema { schema, budget_aware } => {
            (Kind::JsonSchema(schema.clone()), *budget_aware)
        }
        ResponseFormat::Grammar(lark) => (Kind::Lark(lark.clone()), false),
    };
    Some(Grammar { kind: Some(kind), budget_aware })
}
