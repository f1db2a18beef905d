//! Answers that take more than one lexer may remember, or that ask much of it at once.

use serde_json::{Value, json};
use weir_text::{Grammar, GrammarSpec};

use super::draw::Random;
use super::walk::walk;
use crate::fixtures::SMOLLM2;

fn compile(schema: &Value) -> Grammar {
    Grammar::compile(&SMOLLM2, &GrammarSpec::JsonSchema(schema.to_string())).unwrap()
}

/// Walks with a budget and holds the answers to the schema.
fn assert_complete(schema: &Value, budget: u32, num_walks: u64) {
    let (grammar, validator) = (compile(schema), jsonschema::validator_for(schema).unwrap());
    assert!(grammar.shortest_answer().unwrap() <= budget);
    for seed in 1..=num_walks {
        let walk = walk(&SMOLLM2, &grammar, budget, true, &mut Random::new(seed));
        assert!(walk.is_complete, "{seed}: {}", walk.text);
        let answer = serde_json::from_str(&walk.text).unwrap();
        assert!(validator.is_valid(&answer), "{seed}: {}", walk.text);
    }
}

/// Each character of such a string is a state of its own, and a mask meets those of some twenty characters ahead.
#[test]
fn long_strings_whose_length_is_counted_come_to_their_end() {
    let text = json!({"type": "string", "maxLength": 30_000});
    assert_complete(&json!({"type": "array", "items": text, "minItems": 8, "maxItems": 8}), 3_000, 1);
}

/// To look for endings among so many states takes more than the mask does.
#[test]
fn a_budget_is_kept_where_words_and_characters_are_counted() {
    let schema = json!({"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500});
    assert_complete(&schema, 200, 2);
}

/// A whole mask takes too much here: tokens have one byte from there on.
#[test]
fn a_string_too_complex_for_a_mask_is_spelt() {
    let schema = json!({"type": "string", "pattern": r"^(?:[^\s]+\s+){0,150}[^\s]+$", "maxLength": 6_000});
    assert_complete(&schema, 300, 2);
}

/// The shortest of so many constants is not looked for to the end. What does not need it is counted all the same.
#[test]
fn a_budget_is_kept_beside_a_property_whose_least_is_not_known() {
    let name = |number: u64| (1..9).map(|place| format!("-{:03}", number * place * 7_919 % 997)).collect();
    let names: Vec<String> = (0..400).map(name).collect();
    let schema = json!({
        "type": "object",
        "properties": {"zone": {"enum": names}, "on": {"type": "boolean"}, "note": {"type": "string"}},
        "required": ["on"]
    });
    assert_complete(&schema, 40, 20);
}
