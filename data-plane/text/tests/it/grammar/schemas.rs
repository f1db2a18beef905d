//! A hundred schemas of our own, walked at random.

use std::io::Write;
use std::path::PathBuf;

use jsonschema::Validator;
use serde_json::Value;
use weir_text::{Grammar, GrammarSpec};

use super::draw::Random;
use super::read::read;
use super::walk::{Walk, walk};
use crate::fixtures::SMOLLM2;

const BUDGET: u32 = 256;

struct Schema {
    name: String,
    grammar: Grammar,
    validator: Validator,
}

/// All of them, compiled.
fn schemas() -> Vec<Schema> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schemas");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert_eq!(paths.len(), 100);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let grammar = Grammar::compile(&SMOLLM2, &GrammarSpec::JsonSchema(text))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        Schema { name, grammar, validator }
    };
    paths.into_iter().map(read).collect()
}

impl Schema {
    fn assert_valid(&self, walk: &Walk) {
        let Self { name, validator, .. } = self;
        let value = read(&walk.text).unwrap_or_else(|error| panic!("{name}: {error}: {:?}", walk.text));
        let errors: Vec<_> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}: {:?}", walk.text);
    }
}

#[test]
fn answers_within_a_budget_are_complete_and_valid() {
    let schemas = schemas();
    let mut random = Random::new(1);
    let (mut num_walks, mut num_complete, mut num_without) = (0, 0, 0);
    for schema in &schemas {
        let shortest = schema.grammar.shortest_answer().unwrap_or_else(|| panic!("{}", schema.name));
        assert!(shortest <= 128, "{}: {shortest} tokens at the least", schema.name);
        for _ in 0..3 {
            let with = walk(&SMOLLM2, &schema.grammar, BUDGET, true, &mut random);
            let without = walk(&SMOLLM2, &schema.grammar, BUDGET, false, &mut random);
            for walk in [&with, &without].into_iter().filter(|walk| walk.is_complete) {
                schema.assert_valid(walk);
            }
            assert!(with.is_complete, "{}: {:?}", schema.name, with.text);
            num_walks += 1;
            num_complete += usize::from(with.is_complete);
            num_without += usize::from(without.is_complete);
        }
    }
    let mut out = std::io::stdout();
    writeln!(out, "complete within {BUDGET} tokens: {num_complete} of {num_walks}").unwrap();
    writeln!(out, "without a budget-aware ending: {num_without} of {num_walks}").unwrap();
}

#[test]
fn any_budget_that_is_enough_for_the_shortest_answer_is_kept() {
    let mut random = Random::new(2);
    for schema in &schemas() {
        let shortest = schema.grammar.shortest_answer().unwrap();
        for more in [0, 1, 2, 5, 11, 30, 80] {
            let walk = walk(&SMOLLM2, &schema.grammar, shortest + more, true, &mut random);
            assert!(walk.is_complete, "{} with {shortest} + {more}: {:?}", schema.name, walk.text);
            schema.assert_valid(&walk);
        }
    }
}

#[test]
fn a_budget_that_is_not_enough_is_spent_on_what_is_nearest_to_an_end() {
    let schema = r#"{"const": "one two three four five six"}"#.to_owned();
    let grammar = Grammar::compile(&SMOLLM2, &GrammarSpec::JsonSchema(schema)).unwrap();
    let walk = walk(&SMOLLM2, &grammar, 4, true, &mut Random::new(3));
    assert!(!walk.is_complete);
    assert_eq!((walk.num_tokens, walk.text.as_str()), (4, "\"one two three"));
}
