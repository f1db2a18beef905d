//! Answers that not every reader would take for what the schema asks for.

use serde_json::json;
use weir_text::{Grammar, GrammarMatcher, GrammarSpec};

use super::read::read;
use crate::fixtures::SMOLLM2;

/// Whether this text is an answer to the schema.
fn takes(schema: &serde_json::Value, text: &str) -> bool {
    let grammar = Grammar::compile(&SMOLLM2, &GrammarSpec::JsonSchema(schema.to_string())).unwrap();
    let mut matcher = GrammarMatcher::new(grammar, None);
    SMOLLM2.encode(text).unwrap().into_iter().for_each(|token| matcher.consume(token));
    matcher.may_end()
}

#[test]
fn a_name_has_one_spelling() {
    let named = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    assert!(takes(&named, r#"{"a": 1, "b\n\"": "x"}"#));
    assert!(!takes(&named, r#"{"\u0061": "x"}"#));
    let patterns = json!({"type": "object", "patternProperties": {".*": {"type": "integer"}}});
    assert!(takes(&patterns, r#"{"a": 1}"#));
    assert!(!takes(&patterns, r#"{"\u0061": "x"}"#));
}

#[test]
fn white_space_in_a_pattern_is_what_all_engines_take_for_it() {
    let wanted = json!({"type": "string", "pattern": r"^a\sb$"});
    assert!(takes(&wanted, r#""a b""#) && takes(&wanted, r#""a\tb""#));
    for space in ['\u{3000}', '\u{85}', '\u{FEFF}', '\u{1C}'] {
        assert!(!takes(&wanted, &format!("\"a{space}b\"")), "{space:?}");
        assert!(
            !takes(&json!({"type": "string", "pattern": r"^a\Sb$"}), &format!("\"a{space}b\"")),
            "{space:?}"
        );
    }
    assert!(takes(&json!({"type": "string", "pattern": r"^a[^\s-]b$"}), "\"aéb\""));
}

#[test]
fn one_property_at_the_least_is_kept_and_more_if_they_are_required() {
    let one = json!({"type": "object", "minProperties": 1});
    assert!(!takes(&one, "{}") && takes(&one, r#"{"x": 1}"#));
    let three = json!({"type": "object", "required": ["a", "b"], "minProperties": 3});
    assert!(!takes(&three, r#"{"a": 1, "b": 2}"#) && takes(&three, r#"{"a": 1, "b": 2, "c": 3}"#));
    assert!(!takes(&three, r#"{"a": 1, "b": 2, "a": 3}"#));
}

#[test]
fn numbers_are_read_as_their_text_has_them() {
    let check = |text: &str, expected: serde_json::Value| assert_eq!(read(text).unwrap(), expected, "{text}");
    check(r#"[-0, -0.0, -0e7, {"-0": -0}]"#, json!([0, -0.0, -0.0, {"-0": 0}]));
    check(r#"[1e999, 2E-12345, "1e999", "\"-0"]"#, json!([1e99, 2e-12, "1e999", "\"-0"]));
    check("-0", json!(0));
    check("-105", json!(-105));
}
