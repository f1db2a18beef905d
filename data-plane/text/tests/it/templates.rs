//! Chat templates in the styles that models use render as Transformers renders them.

use serde::Deserialize;
use weir_text::{ChatMessage, TemplateError};

use crate::fixtures::{read, small_model};

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

#[test]
fn templates_render_as_the_reference_does() {
    let templates: Templates = serde_json::from_slice(&read("tests/fixtures/templates.json")).unwrap();
    assert!(templates.cases.len() > 500);
    let mut wrong = vec![];
    for case in &templates.cases {
        let message =
            |m: &Message| ChatMessage { name: m.name.clone(), ..ChatMessage::new(&m.role, &m.content) };
        let messages: Vec<ChatMessage> = case.messages.iter().map(message).collect();
        let outcome = small_model(&case.template).unwrap().render_chat(&messages, case.add_generation_prompt);
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
