//! Masks beside all that brute force finds, with a vocabulary of every byte and a few words.

use weir_text::{Grammar, GrammarMatcher, GrammarSpec, ModelText, TextModel};

use super::draw::{Random, allowed};
use crate::fixtures::smollm2_bytes;

/// Every word of the language, as JSON writes it.
const WORDS: [&str; 9] =
    [r#""a""#, r#""ab""#, r#""abba""#, r#""banana""#, r#""bandana""#, r#""née""#, r#""nées""#, "17", "null"];
const TOKENS: [&str; 9] = ["ab", "ba", "an", "ana", "ban", "\"a", "a\"", "\"b", "nul"];

/// Tokens of SmolLM2's first 17, which are control tokens, then all bytes, then `TOKENS`.
fn model() -> TextModel {
    let mut data = ModelText::from_bytes(&smollm2_bytes()).unwrap();
    data.tokens.truncate(17 + 256);
    data.token_types.truncate(17 + 256);
    data.tokens.extend(TOKENS.map(str::to_owned));
    data.token_types.resize(data.tokens.len(), 1);
    data.merges = vec!["a b".to_owned()];
    TextModel::new(data).unwrap()
}

/// Fewest tokens that spell these bytes.
fn fewest(model: &TextModel, bytes: &[u8]) -> usize {
    let tokens = (0..u32::try_from(model.vocab_size()).unwrap()).map(|id| model.token_bytes(id));
    let spelt: Vec<&[u8]> = tokens.filter(|token| !token.is_empty()).collect();
    let mut fewest = vec![0; bytes.len() + 1];
    for at in (0..bytes.len()).rev() {
        let starts = spelt.iter().filter(|token| bytes[at..].starts_with(token));
        fewest[at] = starts.map(|token| 1 + fewest[at + token.len()]).min().unwrap();
    }
    fewest[0]
}

#[test]
fn masks_are_what_brute_force_finds() {
    let model = model();
    let words: Vec<serde_json::Value> =
        WORDS.iter().map(|word| serde_json::from_str(word).unwrap()).collect();
    let schema = serde_json::json!({ "enum": words }).to_string();
    let grammar = Grammar::compile(&model, &GrammarSpec::JsonSchema(schema)).unwrap();
    // One more token, which ends it.
    let shortest = WORDS.iter().map(|word| fewest(&model, word.as_bytes()) + 1).min().unwrap();
    assert_eq!(grammar.shortest_answer(), Some(u32::try_from(shortest).unwrap()));
    let mut random = Random::new(4);
    for round in 0..400 {
        let budget = (round % 2 == 1).then(|| shortest + random.below(9));
        let mut matcher =
            GrammarMatcher::new(grammar.clone(), budget.map(|budget| u32::try_from(budget).unwrap()));
        let mut said = Vec::new();
        for num_tokens in 0.. {
            // Nothing may be left to say; some that cannot be told from that are one token longer.
            if matcher.must_end() {
                break;
            }
            let mask = allowed(&matcher.mask());
            for token in 0..u32::try_from(model.vocab_size()).unwrap() {
                let next = [&said[..], model.token_bytes(token)].concat();
                let is_end = model.eos_ids().contains(&token);
                let goes_on = WORDS.iter().filter(|word| word.as_bytes().starts_with(&next));
                let is_possible = match (is_end, model.token_bytes(token).is_empty()) {
                    (true, _) => WORDS.iter().any(|word| word.as_bytes() == said),
                    (false, true) => false,
                    (false, false) => goes_on.clone().next().is_some(),
                };
                let Some(budget) = budget else {
                    assert_eq!(mask.contains(&token), is_possible, "{:?}", String::from_utf8_lossy(&next));
                    continue;
                };
                if mask.contains(&token) {
                    let left = budget - num_tokens - 1;
                    let needed = goes_on.map(|word| fewest(&model, &word.as_bytes()[next.len()..]) + 1).min();
                    assert!(is_possible, "{:?}", String::from_utf8_lossy(&next));
                    assert!(is_end || needed.unwrap() <= left, "{:?}", String::from_utf8_lossy(&next));
                }
            }
            let token = mask[random.below(mask.len())];
            said.extend(model.token_bytes(token));
            matcher.consume(token);
            assert!(budget.is_none_or(|budget| num_tokens < budget));
        }
        assert!(WORDS.iter().any(|word| word.as_bytes() == said), "{:?}", String::from_utf8_lossy(&said));
    }
}
