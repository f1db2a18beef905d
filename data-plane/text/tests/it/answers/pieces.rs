//! Random answers in random pieces.

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_text::{AnswerParser, CallableTools};

use crate::scripts::{KINDS, run_of_text};

use super::{FAMILIES, HERMES, LLAMA3, Read, form, read, tools, whole};

/// The text cut at these places, each moved to the next border of a character.
fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let border = |at: usize| (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap();
    let mut places: Vec<usize> = cuts.iter().map(|cut| border(cut.index(text.len() + 1))).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Many scripts, and what marks and JSON are made of.
fn any_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        KINDS => run_of_text(),
        1 => prop::sample::select(vec![
            "<",
            ">",
            "<tool",
            "<tool_call",
            "[TOOL_",
            "[TOOL_CALLS",
            "<|python_",
            "<start_function_",
            "</tool_call>",
            "<escape>",
            "<thi",
            "</think",
            "]",
            "call:f",
            "\"name\":",
            "\\",
            "\"",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any_text(), inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Call { name: &'static str, arguments: Value, pretty: bool },
}

fn any_part() -> impl Strategy<Value = Part> {
    let arguments = prop::collection::vec((any_text(), any_json()), 0..4);
    let arguments = arguments.prop_map(|entries| Value::Object(entries.into_iter().collect()));
    prop_oneof![
        any_text().prop_map(Part::Text),
        (prop::sample::select(vec!["f", "get_weather"]), arguments, any::<bool>())
            .prop_map(|(name, arguments, pretty)| Part::Call { name, arguments, pretty }),
    ]
}

/// FunctionGemma's spelling. Texts in which a quote mark stands are spelt as JSON.
fn gemma(value: &Value) -> String {
    let text = |text: &str| match text.contains("<escape>") {
        true => json!(text).to_string(),
        false => format!("<escape>{text}<escape>"),
    };
    match value {
        Value::String(value) => text(value),
        Value::Array(items) => format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{}:{}", text(key), gemma(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// The answer's text in a family's form and what it says, or `None` where the parts' text has a mark in it.
fn write(template: &str, parts: &[Part]) -> Option<(String, Read)> {
    let mut text = String::new();
    let mut expected = Read::default();
    let mut said = String::new();
    let mut follows_call = false;
    let open = FAMILIES.iter().position(|family| *family == template)?;
    let open = ["<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<start_function_call>"][open];
    let end_text = |said: &mut String, expected: &mut Read, before_call: bool| {
        let is_frame = said.trim().is_empty() && (before_call || !expected.calls.is_empty());
        // White space alone is the frame's, at the start before a call and behind calls.
        let starts = expected.content.is_empty() || !expected.calls.is_empty();
        if !(is_frame && starts) {
            expected.content += said;
        }
        said.clear();
    };
    for part in parts {
        match part {
            Part::Text(part) => {
                // What would go on with the calls.
                let part = if follows_call && said.is_empty() { format!("x{part}") } else { part.clone() };
                said += &part;
                text += &part;
                if said.contains(open) || (template == LLAMA3 && text.trim_start().starts_with('{')) {
                    return None;
                }
                follows_call = false;
            }
            Part::Call { name, arguments, pretty } => {
                end_text(&mut said, &mut expected, true);
                let json = if *pretty {
                    serde_json::to_string_pretty(arguments)
                } else {
                    serde_json::to_string(arguments)
                };
                let (mut json, mut framed) = (json.unwrap(), String::new());
                let object = format!("{{\"name\": \"{name}\", \"arguments\": {json}}}");
                match open {
                    "<tool_call>" => framed += &format!("<tool_call>\n{object}\n</tool_call>"),
                    "[TOOL_CALLS]" => framed += &format!("[TOOL_CALLS] [{object}]"),
                    "<|python_tag|>" => framed += &format!("<|python_tag|>{object}"),
                    _ => {
                        framed += &format!(
                            "<start_function_call>call:{name}{}<end_function_call>",
                            gemma(arguments)
                        );
                        json = serde_json::to_string(arguments).unwrap();
                    }
                }
                text += &framed;
                expected.calls.push(((*name).to_owned(), json, true));
                follows_call = true;
            }
        }
    }
    end_text(&mut said, &mut expected, false);
    Some((text, expected))
}

proptest! {
    #[test]
    fn what_is_written_is_read_whatever_the_pieces(
        parts in prop::collection::vec(any_part(), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        for template in FAMILIES {
            let Some((text, expected)) = write(template, &parts) else { continue };
            let stream = read(AnswerParser::new(&form(template), false, tools()), &pieces(&text, &cuts));
            prop_assert_eq!(&stream, &expected, "{:?}", text);
            prop_assert_eq!(&whole(template, &text), &expected, "{:?}", text);
        }
    }

    #[test]
    fn any_text_is_read_alike_whatever_the_pieces_and_lost_nowhere(
        parts in prop::collection::vec(prop_oneof![
            any_text(),
            prop::sample::select(vec![
                "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[", "{", "}", "]", ", ", "; ", "<|python_tag|>", "<start_function_call>",
                "call:f{", "a:", "<escape>", "<end_function_call>", "{\"name\": \"f\", \"arguments\": {", "\"arguments\": {}", "\"name\": \"f\"",
                "\"x\": 1", "<think>", "</think>",
            ]).prop_map(str::to_owned),
        ], 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        opens in any::<bool>(),
    ) {
        let text = parts.concat();
        for template in FAMILIES {
            for template in [template.to_owned(), format!("{template}</think>")] {
                let parser = || AnswerParser::new(&form(&template), opens, tools());
                let stream = read(parser(), &pieces(&text, &cuts));
                prop_assert_eq!(&stream, &read(parser(), &[&text]), "{:?}", text);
                let knows_none = AnswerParser::new(&form(&template), opens, Some(CallableTools { parallel: true, ..CallableTools::default() }));
                let none = read(knows_none, &pieces(&text, &cuts));
                prop_assert_eq!(none.calls, vec![]);
                if none.thought.is_empty() && !template.contains("</think>") {
                    prop_assert_eq!(none.content, text.clone());
                }
            }
        }
    }

    #[test]
    fn thoughts_are_parted_whatever_the_pieces(
        thought in any_text(), said in any_text(), opens in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let template = format!("{HERMES}</think>");
        prop_assume!(!thought.trim_start().starts_with("<think>") && !thought.contains("</think>"));
        let open = if opens { "" } else { "\n<think>\n" };
        let text = format!("{open}{thought}\n</think>\n\n{said}");
        let stream = read(AnswerParser::new(&form(&template), opens, None), &pieces(&text, &cuts));
        prop_assert_eq!(stream.thought, thought.trim());
        prop_assert_eq!(stream.content, said.trim_start());
    }
}
