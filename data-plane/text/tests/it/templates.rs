//! Chat templates in the styles that models use render as Transformers renders them.

use std::sync::LazyLock;

use serde::Deserialize;
use weir_text::{ChatMessage, ModelText, TemplateError, TextModel};

use crate::fixtures::{read, smollm2_bytes};

#[derive(Deserialize)]
struct Templates {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    rendered: Option<String>,
    raised: Option<String>,
    fails: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
    name: Option<String>,
}

/// A small vocabulary with the control tokens that the templates write.
fn model(template: &str) -> Result<TextModel, weir_text::TextError> {
    static SMALL: LazyLock<ModelText> = LazyLock::new(|| {
        let mut data = ModelText::from_bytes(&smollm2_bytes()).unwrap();
        data.tokens.truncate(17 + 256);
        data.token_types.truncate(17 + 256);
        data.merges.truncate(1);
        data
    });
    let mut data = SMALL.clone();
    for name in ["<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"] {
        data.tokens.push(name.to_owned());
        data.token_types.push(3);
    }
    let id =
        |name: &str| data.tokens.iter().position(|token| token == name).map(|id| u32::try_from(id).unwrap());
    (data.bos_token_id, data.eos_token_id) = (id("<s>"), id("</s>"));
    data.chat_template = Some(template.to_owned());
    TextModel::new(data)
}

#[test]
fn templates_render_as_the_reference_does() {
    let templates: Templates = serde_json::from_slice(&read("tests/fixtures/templates.json")).unwrap();
    assert!(templates.cases.len() > 500);
    let mut wrong = vec![];
    for case in &templates.cases {
        let message = |m: &Message| ChatMessage {
            role: m.role.clone(),
            content: m.content.clone(),
            name: m.name.clone(),
        };
        let messages: Vec<ChatMessage> = case.messages.iter().map(message).collect();
        let outcome = model(&case.template).unwrap().render_chat(&messages, case.add_generation_prompt);
        let outcome = outcome.map(|rendered| rendered.text().into_owned());
        let right = match (&outcome, &case.rendered, &case.raised, &case.fails) {
            (Ok(text), Some(expected), None, None) => text == expected,
            (Err(TemplateError::Raised(text)), None, Some(expected), None) => text == expected,
            (Err(TemplateError::Invalid { reason, .. }), None, None, Some(_)) => !reason.contains("panicked"),
            _ => false,
        };
        if !right {
            wrong.push(format!(
                "{} {:?}: {outcome:?}, not {:?}{:?}{:?}",
                case.name,
                case.messages.first().map(|m| &m.content),
                case.rendered,
                case.raised,
                case.fails
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
