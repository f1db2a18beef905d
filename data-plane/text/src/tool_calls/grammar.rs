//! Grammars in `llguidance`'s Lark dialect under which a model calls tools in its own form, so that what is generated
//! reads back as calls.
//!
//! A mark that is a control token of the model's is named by its id, any other is text. A model that thinks may do so
//! before anything else. Gemma's arguments are asked for as JSON, which its reader takes too, because a JSON Schema
//! describes nothing else.

use std::fmt::Write;

use llguidance::JsonCompileOptions;

use crate::answer_form::ToolFamily;
use crate::chat::{Json, Tool};
use crate::grammar::{GrammarError, embedded};
use crate::text_model::TextModel;

/// How far the model is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolUse<'a> {
    /// It calls one of the tools, or several where that is allowed. Arguments obey their schemas; of a tool that is not
    /// strict, as far as the schemas can be enforced.
    Required,
    /// It says what it likes and may call. Only the arguments of strict tools are held to their schemas.
    Free,
    /// It calls, or says what this right side of a rule derives.
    Or(&'a str),
}

/// Any JSON object.
const OBJECT: &str = r#"{"type":"object"}"#;
/// What a tool takes that states no parameters, as OpenAI has it.
const NOTHING: &str = r#"{"type":"object","properties":{},"additionalProperties":false}"#;
/// What the arguments of a tool are called in a grammar, with its place among the tools.
const ARGUMENTS: &str = "arguments_";
/// A schema with one of these says of what type its instances are.
const SAYS_TYPE: [&str; 5] = ["type", "$ref", "anyOf", "oneOf", "allOf"];

impl TextModel {
    /// The grammar for an answer that may call `tools`, which are not empty and have parsed parameters.
    ///
    /// `parallel`: whether more than one call is allowed. `opens_thought`: as [`TextModel::opens_thought`] says of the
    /// prompt.
    ///
    /// # Errors
    /// A strict tool's schema asks for what cannot be enforced, as far as that shows before the grammar is compiled.
    pub fn tool_grammar(
        &self,
        tools: &[Tool],
        tool_use: ToolUse<'_>,
        parallel: bool,
        opens_thought: bool,
    ) -> Result<String, GrammarError> {
        let family = self.answer_form().tool_family();
        let mut rules = String::new();
        match tool_use {
            ToolUse::Required => rules.push_str(&self.calls("answer", family, parallel)),
            ToolUse::Or(said) => {
                line(&mut rules, "answer: calls | said");
                line(&mut rules, &format!("said: {said}"));
                rules.push_str(&self.calls("calls", family, parallel));
            }
            ToolUse::Free => rules.push_str(&self.free(family, parallel)),
        }
        let alternatives: Vec<String> = (0..tools.len()).map(|at| format!("call_{at}")).collect();
        line(&mut rules, &format!("call: {}", alternatives.join(" | ")));
        for (at, tool) in tools.iter().enumerate() {
            let (before, after) = match family {
                ToolFamily::Hermes | ToolFamily::Mistral => {
                    (format!("{{\"name\": {}, \"arguments\": ", literal(&tool.name)), "}")
                }
                ToolFamily::Llama3 => (format!("{{\"name\": {}, \"parameters\": ", literal(&tool.name)), "}"),
                ToolFamily::Gemma => (format!("call:{}", tool.name), ""),
            };
            let after = if after.is_empty() { String::new() } else { format!(" {}", literal(after)) };
            line(&mut rules, &format!("call_{at}: {} arguments_{at}{after}", literal(&before)));
            let rule = arguments_rule(at);
            match arguments(tool, tool_use) {
                Ok(derived) => line(&mut rules, &format!("{rule}: {derived}")),
                Err(error) => return Err(GrammarError::InRule { rule, error: Box::new(error) }),
            }
        }
        Ok(self.grammar_after_thought(&rules, opens_thought))
    }

    /// `rules`, which define `answer`, for an answer before which the model may think. One whose prompt opens a thought
    /// has to end it first.
    pub fn grammar_after_thought(&self, rules: &str, opens_thought: bool) -> String {
        let mut grammar = String::new();
        match self.answer_form().think_marks() {
            None => line(&mut grammar, "start: answer"),
            Some(marks) => {
                let open = self.mark(marks.open);
                let begin = if opens_thought { "thought".to_owned() } else { format!("({open} thought)?") };
                line(&mut grammar, &format!("start: {begin} answer"));
                match self.mark_token(marks.close) {
                    Some(id) => {
                        line(&mut grammar, &format!("thought: TEXT <[{id}]> SPACE"));
                    }
                    None => {
                        line(&mut grammar, "thought: thinking SPACE");
                        line(&mut grammar, &format!("thinking[lazy]: TEXT {}", literal(marks.close)));
                    }
                }
                line(&mut grammar, r"SPACE: /[ \n]{0,4}/");
            }
        }
        grammar.push_str(rules);
        line(&mut grammar, "TEXT: /(?s:.*)/");
        grammar
    }

    /// A rule for calls and nothing else.
    fn calls(&self, rule: &str, family: ToolFamily, parallel: bool) -> String {
        let frame = self.frame(family);
        let Frame { open, separator, close } = &frame;
        let mut rules = String::new();
        match family {
            ToolFamily::Llama3 => line(&mut rules, &format!("{rule}: {}", frame.calls(parallel))),
            ToolFamily::Mistral => {
                line(&mut rules, &format!("{rule}: {open} {} {close}", frame.calls(parallel)))
            }
            ToolFamily::Hermes | ToolFamily::Gemma => {
                let again = if parallel { format!(" ({separator} framed)*") } else { String::new() };
                line(&mut rules, &format!("{rule}: framed{again}"));
                line(&mut rules, &format!("framed: {open} call {close}"));
            }
        }
        rules
    }

    /// `answer` as text with calls in it.
    fn free(&self, family: ToolFamily, parallel: bool) -> String {
        let frame = self.frame(family);
        let mark = family.marks()[0];
        let mut rules = String::new();
        // Text in which a mark would be a call's is not text: what ends with the mark is taken first.
        let until_call = match self.mark_token(mark) {
            Some(id) => format!("SAID <[{id}]>"),
            None => {
                line(&mut rules, &format!("until_call[lazy]: SAID {}", literal(mark)));
                "until_call".to_owned()
            }
        };
        let opened = frame.open.strip_prefix(&self.mark(mark)).unwrap_or_default();
        let (calls, close) = (frame.calls(parallel), &frame.close);
        line(&mut rules, "said: SAID");
        match family {
            // An answer that begins with a brace is a call too.
            ToolFamily::Llama3 => {
                line(&mut rules, &format!("answer: {calls} | said | {until_call} {calls}"));
                line(&mut rules, r"SAID: /\s*([^{\s](?s:.*))?/");
            }
            ToolFamily::Mistral => {
                line(&mut rules, &format!("answer: ({until_call}{opened} {calls} {close})? said"))
            }
            ToolFamily::Hermes | ToolFamily::Gemma => {
                let again = if parallel { "*" } else { "?" };
                line(&mut rules, &format!("answer: ({until_call}{opened} call {close}){again} said"));
            }
        }
        if family != ToolFamily::Llama3 {
            line(&mut rules, "SAID: /(?s:.*)/");
        }
        rules
    }

    fn frame(&self, family: ToolFamily) -> Frame {
        let [open, separator, close] = match family {
            ToolFamily::Hermes => [
                format!("{} \"\\n\"", self.mark("<tool_call>")),
                literal("\n"),
                format!("\"\\n\" {}", self.mark("</tool_call>")),
            ],
            ToolFamily::Gemma => {
                [self.mark("<start_function_call>"), String::new(), self.mark("<end_function_call>")]
            }
            ToolFamily::Mistral => {
                [format!("{} \"[\"", self.mark("[TOOL_CALLS]")), literal(", "), literal("]")]
            }
            ToolFamily::Llama3 => [self.mark("<|python_tag|>"), literal("; "), String::new()],
        };
        Frame { open, separator, close }
    }

    /// A mark in a rule: its control token, or its text.
    fn mark(&self, name: &str) -> String {
        match self.mark_token(name) {
            Some(id) => format!("<[{id}]>"),
            None => literal(name),
        }
    }
}

/// What stands around calls, as parts of rules.
struct Frame {
    open: String,
    separator: String,
    close: String,
}

impl Frame {
    fn calls(&self, parallel: bool) -> String {
        match parallel {
            true => format!("call ({} call)*", self.separator),
            false => "call".to_owned(),
        }
    }
}

fn arguments_rule(at: usize) -> String {
    format!("{ARGUMENTS}{at}")
}

/// Whose arguments a rule of [`TextModel::tool_grammar`] derives: the tool's place among them.
pub fn tool_of_rule(rule: &str) -> Option<usize> {
    rule.strip_prefix(ARGUMENTS)?.parse().ok()
}

/// What derives a tool's arguments: as its schema has it, as far as the schema can be enforced, or any.
fn arguments(tool: &Tool, tool_use: ToolUse<'_>) -> Result<String, GrammarError> {
    let options = JsonCompileOptions {
        // As models are trained to write arguments, and bounded: without a bound white space could go on for ever.
        whitespace_flexible: false,
        item_separator: ", ?".to_owned(),
        key_separator: ": ?".to_owned(),
        lenient: !tool.strict,
        ..JsonCompileOptions::default()
    };
    if !tool.strict && tool_use != ToolUse::Required {
        return embedded(OBJECT, Some(&options));
    }
    let mut schema = Json::parse(tool.parameters.as_deref().unwrap_or(NOTHING));
    // A tool's arguments are an object even where its schema does not say so.
    if let Some(Json::Object(entries)) = &mut schema
        && !entries.iter().any(|(key, _)| SAYS_TYPE.contains(&key.as_str()))
    {
        entries.insert(0, ("type".to_owned(), Json::Text("object".to_owned())));
    }
    let text = serde_json::to_string(&schema).expect("JSON always has a JSON form");
    match embedded(&text, Some(&options)) {
        Err(_) if !tool.strict => embedded(OBJECT, Some(&options)),
        outcome => outcome,
    }
}

/// A text in a rule: Lark's strings are JSON's.
fn literal(text: &str) -> String {
    serde_json::to_string(text).expect("a text always has a JSON form")
}

fn line(rules: &mut String, rule: &str) {
    writeln!(rules, "{rule}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const HERMES: &str = "{% for t in tools %}{{ t }}{% endfor %}<tool_call>";

    fn model(template: &str, control: &[&str]) -> TextModel {
        let mut data = testing::byte_level(&["hi"], Some(template));
        for name in control {
            data.tokens.push((*name).to_owned());
            data.token_types.push(3);
        }
        TextModel::new(data).unwrap()
    }

    fn tools() -> Vec<Tool> {
        let parameters = r#"{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}"#;
        vec![
            Tool { name: "f".into(), parameters: Some(parameters.into()), strict: true, ..Tool::default() },
            Tool { name: "g".into(), ..Tool::default() },
        ]
    }

    fn lines(grammar: &str) -> Vec<&str> {
        grammar.lines().collect()
    }

    #[test]
    fn required_calls_of_hermes() {
        let grammar = |tool_use, parallel| {
            model(HERMES, &[]).tool_grammar(&tools(), tool_use, parallel, false).unwrap()
        };
        let required = grammar(ToolUse::Required, true);
        let rules = lines(&required);
        assert_eq!(
            rules[..5],
            [
                "start: answer",
                r#"answer: framed ("\n" framed)*"#,
                r#"framed: "<tool_call>" "\n" call "\n" "</tool_call>""#,
                "call: call_0 | call_1",
                r#"call_0: "{\"name\": \"f\", \"arguments\": " arguments_0 "}""#,
            ]
        );
        let schema = |at: usize, name: &str| -> serde_json::Value {
            serde_json::from_str(rules[at].strip_prefix(&format!("{name}: %json ")).unwrap()).unwrap()
        };
        let (strict, lenient) = (schema(5, "arguments_0"), schema(7, "arguments_1"));
        assert_eq!(
            (&strict["properties"]["b"]["type"], &lenient["type"]),
            (&"string".into(), &"object".into())
        );
        let options = |schema: &serde_json::Value| schema["x-guidance"]["lenient"].as_bool();
        assert_eq!((options(&strict), options(&lenient)), (Some(false), Some(true)));
        assert_eq!(lines(&grammar(ToolUse::Required, false))[1], "answer: framed");
        assert_eq!(
            lines(&grammar(ToolUse::Or("%json {}"), true))[1..4],
            ["answer: calls | said", "said: %json {}", r#"calls: framed ("\n" framed)*"#]
        );
    }

    #[test]
    fn marks_that_are_control_tokens_are_named_by_id() {
        let mistral = "{% for t in tools %}{{ t }}{% endfor %}[TOOL_CALLS]";
        let model = model(mistral, &["[TOOL_CALLS]"]);
        let id = model.mark_token("[TOOL_CALLS]").unwrap();
        let required = model.tool_grammar(&tools()[1..], ToolUse::Required, true, false).unwrap();
        assert_eq!(lines(&required)[1], format!(r#"answer: <[{id}]> "[" call (", " call)* "]""#));
        let free = model.tool_grammar(&tools()[1..], ToolUse::Free, false, false).unwrap();
        assert_eq!(
            lines(&free)[1..6],
            [
                "said: SAID",
                &format!(r#"answer: (SAID <[{id}]> "[" call "]")? said"#),
                "SAID: /(?s:.*)/",
                "call: call_0",
                r#"call_0: "{\"name\": \"g\", \"arguments\": " arguments_0 "}""#,
            ]
        );
    }

    #[test]
    fn a_model_that_thinks_may_do_so_first() {
        let thinks = format!("{HERMES}</think>");
        let start = |control: &[&str], open| {
            let grammar = model(&thinks, control).grammar_after_thought("answer: \"x\"\n", open);
            lines(&grammar)[..3].join("; ")
        };
        assert_eq!(
            start(&[], true),
            r#"start: thought answer; thought: thinking SPACE; thinking[lazy]: TEXT "</think>""#
        );
        let id = model(&thinks, &["<think>", "</think>"]).mark_tokens(false);
        assert_eq!(
            start(&["<think>", "</think>"], false),
            format!(
                "start: (<[{}]> thought)? answer; thought: TEXT <[{}]> SPACE; SPACE: /[ \\n]{{0,4}}/",
                id[0], id[1]
            )
        );
    }
}
