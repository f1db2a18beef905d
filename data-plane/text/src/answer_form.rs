//! How a model writes calls of tools and what it thinks, told by its chat template alone.

use crate::model_text::ModelText;

/// How calls of tools are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFamily {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call. Hermes, Qwen 2.5 and 3, and every
    /// model whose template has none of these forms.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer, or behind `<|python_tag|>`; further calls behind `;`.
    /// Llama 3.1 to 3.3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`. Mistral's models up to the third version of their tokenizer.
    Mistral,
    /// `<start_function_call>call:NAME{key:<escape>text<escape>,other:1}<end_function_call>`, the form that Google
    /// published with FunctionGemma. Its arguments become JSON.
    Gemma,
}

/// What encloses a model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThinkMarks {
    pub(crate) open: &'static str,
    pub(crate) close: &'static str,
}

/// DeepSeek-R1, Qwen 3 and most others; then Magistral.
const THINK_MARKS: [ThinkMarks; 2] =
    [ThinkMarks { open: "<think>", close: "</think>" }, ThinkMarks { open: "[THINK]", close: "[/THINK]" }];

/// How one model's answers are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerForm {
    /// `None`: the template renders no tools in a form that is read here.
    in_template: Option<ToolFamily>,
    think_marks: Option<ThinkMarks>,
}

impl AnswerForm {
    /// From the chat template alone.
    ///
    /// A template has tools if it names `tools` and one family's mark: `[TOOL_CALLS]` (and not the newer `[ARGS]`) is
    /// Mistral's, `<start_function_call>` Gemma's, `<tool_call>` Hermes' (unless it is Qwen3-Coder's, whose calls are
    /// `<function=`), `<|python_tag|>`, or Llama's headers with a `"parameters"` in quotes, Llama 3's. A model thinks
    /// if its template names the mark that ends a thought.
    pub fn of(data: &ModelText) -> Self {
        let template = data.chat_template.as_deref().unwrap_or_default();
        let has = |mark: &str| template.contains(mark);
        let in_template = if !has("tools") {
            None
        } else if has("[TOOL_CALLS]") {
            (!has("[ARGS]")).then_some(ToolFamily::Mistral)
        } else if has("<start_function_call>") {
            Some(ToolFamily::Gemma)
        } else if has("<tool_call>") {
            (!has("<function=")).then_some(ToolFamily::Hermes)
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Some(ToolFamily::Llama3)
        } else {
            None
        };
        Self { in_template, think_marks: THINK_MARKS.into_iter().find(|marks| has(marks.close)) }
    }

    /// How this model calls tools.
    pub fn tool_family(&self) -> ToolFamily {
        self.in_template.unwrap_or(ToolFamily::Hermes)
    }

    /// Whether the template itself renders tools and calls.
    pub(crate) fn template_has_tools(&self) -> bool {
        self.in_template.is_some()
    }

    pub(crate) fn think_marks(&self) -> Option<ThinkMarks> {
        self.think_marks
    }

    /// Whether the model may think before it answers.
    pub fn thinks(&self) -> bool {
        self.think_marks.is_some()
    }

    /// Names that a parser has to see although they may be control tokens: those of thoughts always, those of calls
    /// where the request has tools.
    pub fn marks(&self, with_tools: bool) -> Vec<&'static str> {
        let thoughts = self.think_marks.into_iter().flat_map(|marks| [marks.open, marks.close]);
        let calls = with_tools.then(|| self.tool_family().marks()).into_iter().flatten().copied();
        thoughts.chain(calls).collect()
    }
}

impl ToolFamily {
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Llama3 => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::Gemma => &["<start_function_call>", "<end_function_call>", "<escape>"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn form(template: &str) -> AnswerForm {
        AnswerForm::of(&testing::byte_level(&["hi"], Some(template)))
    }

    #[test]
    fn a_template_tells_its_family() {
        let family = |template: &str| form(template).in_template;
        let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";
        let hermes = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}\
                      {% for m in messages %}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}";
        assert_eq!(family(chatml), None);
        assert_eq!(family(hermes), Some(ToolFamily::Hermes));
        assert_eq!(family(&hermes.replace("{{ c.function", "<function={{ c.function")), None);
        assert_eq!(family("{% for m in messages %}<tool_call>{% endfor %}"), None);
        let llama = "{% if tools %}Answer with {\"name\": a function, \"parameters\": its arguments}{% endif %}\
                     {% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}{% endfor %}";
        assert_eq!(family(llama), Some(ToolFamily::Llama3));
        assert_eq!(family("{% if tools %}{% endif %}<|python_tag|>"), Some(ToolFamily::Llama3));
        let mistral =
            "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]";
        assert_eq!(family(mistral), Some(ToolFamily::Mistral));
        assert_eq!(family(&format!("{mistral}[ARGS]")), None);
        assert_eq!(
            family("{% for t in tools %}<start_function_declaration>{% endfor %}<start_function_call>"),
            Some(ToolFamily::Gemma)
        );
        assert_eq!(family("{% for t in tools %}{{ t }}{% endfor %}"), None);
        assert_eq!(form(chatml).tool_family(), ToolFamily::Hermes);
        let without = crate::ModelText { chat_template: None, ..testing::byte_level(&["hi"], None) };
        assert_eq!(AnswerForm::of(&without).tool_family(), ToolFamily::Hermes);
    }

    #[test]
    fn a_template_tells_whether_its_model_thinks() {
        assert!(form("{% if m.content.split('</think>') %}{% endif %}").thinks());
        assert_eq!(form("[/THINK]").think_marks().unwrap().open, "[THINK]");
        assert!(!form("I think").thinks());
        assert_eq!(form("</think>").marks(true), ["<think>", "</think>", "<tool_call>", "</tool_call>"]);
        assert_eq!(form("x").marks(false), [""; 0]);
    }
}
