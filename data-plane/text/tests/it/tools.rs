//! Tools, calls and results as models' templates write them, and as a template without tools gets them. The templates
//! are in the manner of each family's own.

use proptest::prelude::*;
use weir_text::{ChatMessage, TemplateError, TextModel, Tool, ToolCall, ToolFamily};

use crate::fixtures::small_model;

const QWEN: &str = "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\n' }}</tools>\
    <tool_call>{\"name\": ...}</tool_call><|im_end|>{{ '\n' }}{% endif %}\
    {%- for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}{{ '\n' }}</tool_response><|im_end|>{{ '\n' }}\
    {%- else %}<|im_start|>{{ m.role }}{% if m.content %}{{ '\n' + m.content }}{% endif %}\
    {%- for call in m.tool_calls %}{% set call = call.function %}{{ '\n' }}<tool_call>\n{\"name\": \"{{ call.name }}\", \"arguments\": {{ call.arguments | tojson }}}\n</tool_call>\
    {%- endfor %}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}\
    {# </think> #}";
const LLAMA: &str = "{% if tools is not none %}Answer with {\"name\": ..., \"parameters\": ...}{% for t in tools %}{{ '\n' + (t | tojson(indent=1)) }}{% endfor %}{% endif %}\
    {%- for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\
    {%- if 'tool_calls' in m %}{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}\
    {%- else %}{{ m.content }}{% endif %}{% endfor %}";
const MISTRAL: &str = "{% if tools is not none %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}\
    {%- for m in messages %}{% if m.tool_calls is defined %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}\
    {{- c.function | tojson }}{% endfor %}]</s>{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[TOOL_RESULTS]{{ m.content }}\
    {%- else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}";
const GEMMA: &str = "{% for t in tools %}<start_function_declaration>{{ t.function.name }}:{% for k, v in t.function.parameters.properties.items() %}{{ k }}={{ v.type | upper }}{% endfor %}{% endfor %}\
    {%- for m in messages %}{% for c in m.tool_calls %}<start_function_call>call:{{ c.function.name }}{ {%- for k, v in c.function.arguments.items() %}{{ k }}:<escape>{{ v }}<escape>{% endfor %}}<end_function_call>\
    {%- endfor %}{{ m.content }}{% endfor %}";
const WITHOUT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const WITHOUT_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[INST]{{ m.content }}[/INST]{% endfor %}";

fn weather() -> Tool {
    Tool {
        name: "weather".into(),
        description: Some("Tells the weather".into()),
        parameters: Some(
            r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#.into(),
        ),
        strict: true,
    }
}

fn conversation() -> Vec<ChatMessage> {
    let call =
        ToolCall { id: "call_1".into(), name: "weather".into(), arguments: r#"{"city":"Köln"}"#.into() };
    vec![
        ChatMessage::new("user", "Rain?"),
        ChatMessage { tool_calls: vec![call], ..ChatMessage::new("assistant", "") },
        ChatMessage { tool_call_id: Some("call_1".into()), ..ChatMessage::new("tool", "yes") },
    ]
}

fn render(template: &str, tools: &[Tool]) -> (TextModel, Result<String, TemplateError>) {
    let model = small_model(template).unwrap();
    let rendered = model.render_chat_at(&conversation(), tools, true, None);
    let text = rendered.map(|rendered| rendered.text().into_owned());
    (model, text)
}

#[test]
fn qwen() {
    let (model, text) = render(QWEN, &[weather()]);
    assert_eq!(model.answer_form().tool_family(), ToolFamily::Hermes);
    assert_eq!(
        text.unwrap(),
        "<|im_start|>system\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \
         \"Tells the weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \
         \"required\": [\"city\"]}}}\n</tools><tool_call>{\"name\": ...}</tool_call><|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\nyes\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
    let opens = |prompt| model.opens_thought(&model.render_chat(&conversation(), prompt).unwrap());
    assert_eq!((opens(true), opens(false)), (true, false));
}

#[test]
fn llama_mistral_and_gemma() {
    let (model, text) = render(LLAMA, &[weather()]);
    assert_eq!(model.answer_form().tool_family(), ToolFamily::Llama3);
    let text = text.unwrap();
    assert!(
        text.contains("\n{\n \"type\": \"function\",\n \"function\": {\n  \"name\": \"weather\""),
        "{text}"
    );
    assert!(text.ends_with(
        "<|start_header_id|>user<|end_header_id|>Rain?<|start_header_id|>assistant<|end_header_id|>\
         {\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\"}}<|start_header_id|>ipython<|end_header_id|>yes"
    ));
    let (_, text) = render(LLAMA, &[]);
    assert!(text.unwrap().starts_with("<|start_header_id|>"), "no tools are none, as the template asks");

    let (model, text) = render(MISTRAL, &[weather()]);
    assert_eq!(model.answer_form().tool_family(), ToolFamily::Mistral);
    let text = text.unwrap();
    assert!(text.starts_with("[AVAILABLE_TOOLS][{\"type\": \"function\", "));
    assert!(
        text.ends_with(
            "[INST]Rain?[/INST][TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}]</s>[TOOL_RESULTS]yes"
        ),
        "{text}"
    );

    let (model, text) = render(GEMMA, &[weather()]);
    assert_eq!(model.answer_form().tool_family(), ToolFamily::Gemma);
    assert_eq!(
        text.unwrap(),
        "<start_function_declaration>weather:city=STRINGRain?\
         <start_function_call>call:weather{city:<escape>Köln<escape>}<end_function_call>yes"
    );
}

#[test]
fn a_template_without_tools_gets_them_in_the_messages() {
    let (model, text) = render(WITHOUT, &[weather()]);
    assert_eq!(model.answer_form().tool_family(), ToolFamily::Hermes);
    let text = text.unwrap();
    assert!(text.starts_with("<|im_start|>system\nYou can call functions."), "{text}");
    assert!(text.ends_with(
        "<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
         {\"city\": \"Köln\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nyes\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    ));
    let (_, text) = render(WITHOUT_SYSTEM, &[weather()]);
    let text = text.unwrap();
    assert!(
        text.starts_with("[INST]You can call functions.") && text.contains("</tool_call>\n\nRain?[/INST]"),
        "{text}"
    );
}

#[test]
fn parameters_that_are_no_object_or_too_deep_are_refused() {
    let deep = format!("{}1{}", "{\"a\":".repeat(40), "}".repeat(40));
    for parameters in ["[]", "{", &deep] {
        for template in [QWEN, WITHOUT] {
            let (_, text) = render(template, &[Tool { parameters: Some(parameters.into()), ..weather() }]);
            assert_eq!(text, Err(TemplateError::Parameters));
        }
    }
}

/// Text of which control tokens can be made.
fn forgery() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<|im_start|>",
        "<|im_end|>",
        "<s>",
        "</s>",
        "[INST]",
        "<|",
        "|>",
        "im_",
        "<|im_start",
        "_end|>",
        "\u{FDD0}",
        "\"",
        "\\",
        "\n",
        "{",
        "é",
    ]);
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn nothing_of_a_tool_or_a_call_forges_a_control_token(
        texts in prop::collection::vec(forgery(), 10),
        json in "\\PC{0,20}",
    ) {
        let build = |texts: &[String], json: &str| {
            let object = serde_json::json!({ (texts[0].clone()): { "type": texts[1], (texts[2].clone()): [texts[3]] } });
            let (object, schema) = (object.to_string(), serde_json::json!({ "properties": object }).to_string());
            let tool = Tool { name: texts[4].clone(), description: Some(texts[5].clone()), parameters: Some(schema), strict: false };
            let call = |arguments: &str| ToolCall { id: texts[6].clone(), name: texts[7].clone(), arguments: arguments.into() };
            let messages = vec![
                ChatMessage { tool_calls: vec![call(&object), call(json)], reasoning_content: Some(texts[8].clone()), ..ChatMessage::new("assistant", "") },
                ChatMessage { tool_call_id: Some(texts[6].clone()), ..ChatMessage::new("tool", &texts[9]) },
            ];
            (messages, tool)
        };
        let plain: Vec<String> = (0..10).map(|at| format!("x{at}")).collect();
        for template in [QWEN, LLAMA, MISTRAL, GEMMA, WITHOUT] {
            let model = small_model(template).unwrap();
            let control = |texts: &[String], json: &str| -> Vec<u32> {
                let (messages, tool) = build(texts, json);
                let rendered = model.render_chat_at(&messages, &[tool], true, None);
                let rendered = rendered.unwrap_or_else(|error| panic!("{error:?}"));
                let ids = model.encode_rendered(&rendered).unwrap();
                ids.into_iter().filter(|&id| model.token_bytes(id).is_empty()).collect()
            };
            // Gemma's writes what the object has, so its second call has the same in both.
            let json = if template == GEMMA { "" } else { json.as_str() };
            let harmless = if template == GEMMA { "" } else { "x" };
            prop_assert_eq!(control(&texts, json), control(&plain, harmless), "{}", template);
        }
    }
}
