//! Grammars of calls take what their families' readers read, and nothing else.

use weir_text::{Grammar, GrammarError, GrammarMatcher, GrammarSpec, TextModel, Tool, ToolUse, tool_of_rule};

use crate::fixtures::small_model;

const THINKS: &str = "</think>";

struct Case {
    model: TextModel,
    grammar: String,
}

impl Case {
    fn new(mark: &str, tool_use: ToolUse<'_>, parallel: bool, opens_thought: bool) -> Self {
        let strict = r#"{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}},"required":["b"],"additionalProperties":false}"#;
        let odd = r#"{"properties":{"c":{"type":"string","format":"odd"}},"required":["c"]}"#;
        let tools = [
            Tool { name: "f".into(), parameters: Some(strict.into()), strict: true, ..Tool::default() },
            Tool { name: "g".into(), parameters: Some(odd.into()), ..Tool::default() },
        ];
        let model = small_model(&format!("{{{{ tools }}}}{mark}")).unwrap();
        let grammar = model.tool_grammar(&tools, tool_use, parallel, opens_thought).unwrap();
        Self { model, grammar }
    }

    /// Whether the whole text may be an answer.
    fn takes(&self, text: &str) -> bool {
        let spec = GrammarSpec::Lark(self.grammar.clone());
        let grammar =
            Grammar::compile(&self.model, &spec).unwrap_or_else(|error| panic!("{error}: {}", self.grammar));
        let mut matcher = GrammarMatcher::new(grammar, None);
        // Without the token that begins a prompt.
        for token in self.model.encode(text).unwrap().into_iter().skip(1) {
            if matcher.must_end() || matcher.mask()[(token / 32) as usize] & (1 << (token % 32)) == 0 {
                return false;
            }
            matcher.consume(token);
        }
        matcher.may_end()
    }

    fn check(&self, taken: &[&str], refused: &[&str]) {
        for text in taken {
            assert!(self.takes(text), "{text:?} is not taken by\n{}", self.grammar);
        }
        for text in refused {
            assert!(!self.takes(text), "{text:?} is taken by\n{}", self.grammar);
        }
    }
}

const F: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": \"x\", \"a\": 1}}\n</tool_call>";
const G: &str = "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"c\": \"x\", \"z\": [1]}}\n</tool_call>";

#[test]
fn hermes() {
    let (wrong_type, missing) = (F.replace("\"x\"", "2"), F.replace("\"b\": \"x\", ", ""));
    let both = format!("{F}\n{G}");
    let required = Case::new("<tool_call>", ToolUse::Required, true, false);
    required.check(&[F, G, &both], &["", "hi", &wrong_type, &missing]);
    Case::new("<tool_call>", ToolUse::Required, false, false).check(&[F], &[&both]);
    let free = Case::new("<tool_call>", ToolUse::Free, true, false);
    let around = format!("hi\n{F}\nthere");
    free.check(
        &["", "hi <tool_ you", F, &around, &both],
        &[&wrong_type, "<tool_call>hi", &format!("{F} {missing}")],
    );
    let or = Case::new("<tool_call>", ToolUse::Or("%json {\"type\":\"integer\"}"), true, false);
    or.check(&["17", F, &both], &["hi", &wrong_type]);
}

#[test]
fn a_tool_without_parameters_is_called_with_none() {
    for strict in [false, true] {
        let model = small_model("{{ tools }}<tool_call>").unwrap();
        let tools = [Tool { name: "f".into(), strict, ..Tool::default() }];
        let grammar = model.tool_grammar(&tools, ToolUse::Required, true, false).unwrap();
        let case = Case { model, grammar };
        let call =
            |arguments| format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
        case.check(&[&call("{}")], &[&call("{\"a\": 1}"), &call("1")]);
    }
}

#[test]
fn of_a_tool_that_cannot_be_held_to_its_schema_the_place_is_told_and_no_grammar() {
    let model = small_model("{{ tools }}<tool_call>").unwrap();
    let tool = |parameters: &str| Tool {
        name: "f".into(),
        parameters: Some(parameters.into()),
        strict: true,
        ..Tool::default()
    };
    for (schema, says) in [
        (r#"{"type":"object","properties":{"a":{"uniqueItems":true}}}"#, "`uniqueItems` is not supported"),
        (r#"{"type":"object","properties":{"a":{"pattern":"(?=a)b"}}}"#, "look"),
        (r##"{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}"##, "no finite instance"),
    ] {
        let tools = [tool(r#"{"type":"object"}"#), tool(schema)];
        let compiled = model
            .tool_grammar(&tools, ToolUse::Free, true, false)
            .and_then(|grammar| Grammar::compile(&model, &GrammarSpec::Lark(grammar)));
        let message = compiled.unwrap_err().to_string();
        let (rule, reason) = GrammarError::in_rule(&message).unwrap();
        assert_eq!(tool_of_rule(rule), Some(1));
        assert!(
            reason.contains(says) && !reason.contains("%json") && !reason.contains("x-guidance"),
            "{reason}"
        );
    }
}

#[test]
fn the_other_families() {
    let llama = "{\"name\": \"f\", \"parameters\": {\"b\": \"x\"}}";
    let two = format!("{llama}; {llama}");
    Case::new("<|python_tag|>", ToolUse::Required, true, false).check(&[llama, &two], &["x"]);
    let (tagged, later) = (format!("<|python_tag|>{llama}"), format!("hi <|python_tag|>{two}"));
    let free = Case::new("<|python_tag|>", ToolUse::Free, true, false);
    free.check(&["", "hi {", llama, &tagged, &later], &["{\"a\": 1}", "<|python_tag|>x"]);
    let mistral = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"b\": \"x\"}}]";
    let two = mistral.replace("}]", "}, {\"name\": \"g\", \"arguments\": {\"c\":\"\"}}]");
    Case::new("[TOOL_CALLS]", ToolUse::Required, true, false).check(&[mistral, &two], &["x"]);
    let free = Case::new("[TOOL_CALLS]", ToolUse::Free, true, false);
    free.check(&["hi [TOOL", &format!("hi{mistral}")], &["[TOOL_CALLS]x"]);
    let gemma = "<start_function_call>call:f{\"b\":\"x\"}<end_function_call>";
    let two = format!("{gemma}{gemma}");
    Case::new("<start_function_call>", ToolUse::Required, true, false).check(&[gemma, &two], &["x"]);
    Case::new("<start_function_call>", ToolUse::Free, true, false)
        .check(&["x", &format!("a{gemma}b{gemma}")], &[]);
}

#[test]
fn thoughts_come_first() {
    let mark = format!("<tool_call>{THINKS}");
    let required = Case::new(&mark, ToolUse::Required, true, false);
    let thought = format!("<think>a <tool_call> 1</think>\n\n{F}");
    required.check(&[F, &thought, &format!("<think></think>{F}")], &["<think>x</think>hi"]);
    Case::new(&mark, ToolUse::Required, true, true).check(&[&format!("hm</think>\n\n{F}")], &[F]);
    Case::new(&mark, ToolUse::Free, true, true)
        .check(&[&format!("hm</think>\n\nso {F}"), "hm</think>"], &["hm"]);
}
