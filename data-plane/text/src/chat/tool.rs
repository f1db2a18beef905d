//! Tools that a caller declares, and the calls of them that a conversation already holds.

/// A function that the model may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// JSON text of the JSON Schema of its arguments; `None`: it takes none.
    pub parameters: Option<String>,
    /// Whether what is generated must obey the schema. Templates do not see it.
    pub strict: bool,
}

/// A call that an assistant's message made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text as the model once wrote it. What is no JSON object, such as a call that the length cut, is shown to
    /// templates as a string.
    pub arguments: String,
}

/// The schema of a tool without parameters.
pub(crate) const NO_PARAMETERS: &str = r#"{"type":"object","properties":{}}"#;
