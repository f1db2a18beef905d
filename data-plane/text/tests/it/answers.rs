//! However an answer's text is cut on the way, the same is thought, said and called; nothing is lost or shown twice.

mod pieces;

use std::sync::LazyLock;

use weir_text::{AnswerEvent, AnswerForm, AnswerParser, CallableTools, ModelText};

use crate::fixtures::smollm2_bytes;

/// A call's name, its arguments' text, and whether it ended.
type Call = (String, String, bool);

/// All that an answer said.
#[derive(Debug, Default, PartialEq)]
struct Read {
    thought: String,
    content: String,
    calls: Vec<Call>,
}

const FAMILIES: [&str; 4] = [
    "{{ tools }}<tool_call>",
    "{{ tools }}<|python_tag|>",
    "{{ tools }}[TOOL_CALLS]",
    "{{ tools }}<start_function_call>",
];
const HERMES: &str = FAMILIES[0];
const LLAMA3: &str = FAMILIES[1];
const MISTRAL: &str = FAMILIES[2];
const GEMMA: &str = FAMILIES[3];

/// A form is told by the template alone, so the rest of the model's text is left out.
fn form(template: &str) -> AnswerForm {
    static REST: LazyLock<ModelText> = LazyLock::new(|| {
        let data = ModelText::from_bytes(&smollm2_bytes()).unwrap();
        ModelText { tokens: vec![], token_types: vec![], merges: vec![], ..data }
    });
    AnswerForm::of(&ModelText { chat_template: Some(template.to_owned()), ..REST.clone() })
}

fn tools() -> Option<CallableTools> {
    Some(CallableTools { names: vec!["f".into(), "get_weather".into()], parallel: true, required: false })
}

fn read(mut parser: AnswerParser, pieces: &[&str]) -> Read {
    let mut read = Read::default();
    let mut events = vec![];
    for piece in pieces {
        parser.push(piece, &mut events);
    }
    parser.finish(&mut events);
    for event in events {
        match event {
            AnswerEvent::Reasoning(text) => read.thought += &text,
            AnswerEvent::Content(text) => read.content += &text,
            AnswerEvent::ToolCallBegin { index, name } => {
                assert_eq!(index as usize, read.calls.len());
                read.calls.push((name, String::new(), false));
            }
            AnswerEvent::Arguments { index, piece } => {
                assert_eq!(index as usize + 1, read.calls.len());
                let call = read.calls.last_mut().unwrap();
                assert!(!call.2 && !piece.is_empty());
                call.1 += &piece;
            }
            AnswerEvent::ToolCallEnd { index } => {
                assert_eq!(index as usize + 1, read.calls.len());
                read.calls.last_mut().unwrap().2 = true;
            }
        }
    }
    read
}

fn whole(template: &str, text: &str) -> Read {
    read(AnswerParser::new(&form(template), false, tools()), &[text])
}

#[test]
fn each_family_reads_its_own_calls() {
    let check = |template: &str, text: &str, content: &str, calls: &[(&str, &str)]| {
        let calls =
            calls.iter().map(|(name, arguments)| ((*name).into(), (*arguments).into(), true)).collect();
        let expected = Read { content: content.into(), calls, ..Read::default() };
        assert_eq!(whole(template, text), expected, "{text:?}");
    };
    let call = r#"{"name": "f", "arguments": {"a": 1}}"#;
    check(HERMES, &format!("\n<tool_call>\n{call}\n</tool_call>\n"), "", &[("f", r#"{"a": 1}"#)]);
    check(
        HERMES,
        &format!("Let me see.\n<tool_call>{call}</tool_call>\n<tool_call>\n{call}\n</tool_call> Done"),
        "Let me see.\n Done",
        &[("f", r#"{"a": 1}"#), ("f", r#"{"a": 1}"#)],
    );
    check(
        HERMES,
        "<tool_call>{\"name\": \"unknown\"}</tool_call>",
        "<tool_call>{\"name\": \"unknown\"}</tool_call>",
        &[],
    );
    check(
        HERMES,
        &format!("  <tool_call> so <tool_call>{call}"),
        "  <tool_call> so ",
        &[("f", r#"{"a": 1}"#)],
    );
    check(HERMES, call, call, &[]);
    let call = r#"{"name": "f", "parameters": {"a": "}"}}"#;
    check(LLAMA3, call, "", &[("f", r#"{"a": "}"}"#)]);
    check(LLAMA3, &format!("<|python_tag|>{call}; {call}"), "", &[("f", r#"{"a": "}"}"#); 2]);
    check(LLAMA3, &format!(" {call}\n{call} "), "", &[("f", r#"{"a": "}"}"#); 2]);
    check(LLAMA3, &format!("As JSON: {call}"), &format!("As JSON: {call}"), &[]);
    check(LLAMA3, "<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]);
    check(LLAMA3, r#"{"name": "Bob"}"#, r#"{"name": "Bob"}"#, &[]);
    let calls = r#"[{"name": "f", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "首尔"}}]"#;
    check(
        MISTRAL,
        &format!("[TOOL_CALLS] {calls}"),
        "",
        &[("f", "{}"), ("get_weather", r#"{"city": "首尔"}"#)],
    );
    check(
        MISTRAL,
        &format!("a [TOOL_CALLS]{calls} b"),
        "a  b",
        &[("f", "{}"), ("get_weather", r#"{"city": "首尔"}"#)],
    );
    check(MISTRAL, "[TOOL_CALLS]f", "[TOOL_CALLS]f", &[]);
    check(
        GEMMA,
        "<start_function_call>call:get_weather{city:<escape>서울<escape>,days:3}<end_function_call>",
        "",
        &[("get_weather", r#"{"city":"서울","days":3}"#)],
    );
    check(GEMMA, "<start_function_call>call:h{}", "<start_function_call>call:h{}", &[]);
}

#[test]
fn a_call_that_the_length_cut_has_no_end() {
    let check = |template: &str, text: &str, arguments: &str| {
        let calls = vec![("f".to_owned(), arguments.to_owned(), false)];
        assert_eq!(whole(template, text), Read { calls, ..Read::default() }, "{text:?}");
    };
    check(HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"中", "{\"a\": \"中");
    check(LLAMA3, "{\"name\": \"f\", \"parameters\": {", "{");
    check(MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1,", "{\"a\": [1,");
    check(GEMMA, "<start_function_call>call:f{a:<escape>x<esc", "{\"a\":\"x");
    // Nobody can do anything with a call that has no name yet.
    assert_eq!(whole(HERMES, "<tool_call>{\"name\": \"f\", \"argum"), Read::default());
}

#[test]
fn events_come_no_later_than_they_must() {
    let mut parser = AnswerParser::new(&form(HERMES), false, tools());
    let mut steps = vec![];
    for piece in [
        "Well",
        " <",
        "3 <tool",
        "_call>",
        "{\"name\": \"f\", ",
        "\"arguments\": {",
        "\"a\": \"x",
        "y\"}",
        "}",
    ] {
        let mut events = vec![];
        parser.push(piece, &mut events);
        steps.push(events);
    }
    let content = |text: &str| AnswerEvent::Content(text.into());
    let arguments = |piece: &str| AnswerEvent::Arguments { index: 0, piece: piece.into() };
    assert_eq!(
        steps,
        [
            vec![content("Well")],
            vec![content(" ")],
            vec![content("<3 ")],
            vec![],
            vec![],
            vec![AnswerEvent::ToolCallBegin { index: 0, name: "f".into() }, arguments("{")],
            vec![arguments("\"a\": \"x")],
            vec![arguments("y\"}")],
            vec![AnswerEvent::ToolCallEnd { index: 0 }],
        ]
    );
}

#[test]
fn with_one_call_allowed_what_follows_it_is_dropped() {
    let one = Some(CallableTools { parallel: false, ..tools().unwrap() });
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let read = read(AnswerParser::new(&form(HERMES), false, one), &[&format!("x{call}y{call}z")]);
    assert_eq!(read.content, "x");
    assert_eq!(read.calls, [("f".to_owned(), "{\"a\": 1}".to_owned(), true)]);
}

/// An answer that ends anywhere shows nothing of how the model writes its calls.
#[test]
fn what_the_end_leaves_of_a_call_is_no_content() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let two = format!("{call}\n{call}");
    let required = Some(CallableTools { required: true, ..tools().unwrap() });
    for end in 0..=two.len() {
        let of_required = read(AnswerParser::new(&form(HERMES), false, required.clone()), &[&two[..end]]);
        assert_eq!(of_required.content, "", "{:?}", &two[..end]);
        let free = read(AnswerParser::new(&form(HERMES), false, tools()), &[&two[..end]]);
        assert!(!free.content.contains("name"), "{:?}: {}", &two[..end], free.content);
        assert_eq!(of_required.calls, free.calls);
    }
    // What only mentions a mark is content where there need be no call.
    let mention = "The mark is <tool_call>";
    assert_eq!(read(AnswerParser::new(&form(HERMES), false, tools()), &[mention]).content, mention);
}

#[test]
fn a_thought_is_no_content_and_its_calls_are_none() {
    let template = format!("{HERMES}</think>");
    let text = "<think>\nI could <tool_call> f.\n</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>";
    let expected = Read {
        thought: "I could <tool_call> f.".into(),
        calls: vec![("f".into(), "{}".into(), true)],
        ..Read::default()
    };
    assert_eq!(whole(&template, text), expected);
    let opened = AnswerParser::new(&form(&template), true, tools());
    assert_eq!(read(opened, &[&text["<think>\n".len()..]]), expected);
    let without_tools = read(AnswerParser::new(&form(&template), false, None), &[text]);
    assert_eq!(without_tools.content, "<tool_call>{\"name\": \"f\"}</tool_call>");
}

#[test]
fn megabytes_of_beginnings_are_read_in_one_pass() {
    for (template, piece) in [
        (HERMES, "<tool_call>{\"name\": \"f\", \"x\": \""),
        (HERMES, "<tool_call>\n"),
        (HERMES, "<tool_call>{\"a\": [[[{"),
        (LLAMA3, "<|python_tag|>{\"name\": "),
        (MISTRAL, "[TOOL_CALLS][{"),
        (GEMMA, "<start_function_call>call:f{a:[[["),
        (GEMMA, "<start_function_call>call:g"),
        (HERMES, " \n"),
    ] {
        let template = format!("{template}</think>");
        let text = piece.repeat((1 << 20) / piece.len());
        let letters: Vec<&str> = text.split_inclusive(|_| true).collect();
        let stream = read(AnswerParser::new(&form(&template), false, tools()), &letters);
        assert_eq!(stream, whole(&template, &text), "{piece:?}");
    }
}
