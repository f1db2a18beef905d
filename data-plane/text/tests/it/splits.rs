//! However tokens and text are cut on the way, the client's text is the same.

use std::sync::Arc;

use proptest::prelude::*;
use weir_text::{Detokenizer, StopMatcher, TextModel};

use crate::fixtures::{GEMMA3, SMOLLM2};
use crate::scripts::{KINDS, run_of_text};

/// Many scripts, and code.
fn any_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        KINDS => run_of_text(),
        1 => "[(){};=<|>0-9]{1,8}",
        1 => "\\PC{1,4}",
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn streamed(model: &Arc<TextModel>, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(model));
    let mut deltas: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
    deltas.push(detokenizer.finish().to_owned());
    deltas
}

proptest! {
    #[test]
    fn streamed_text_equals_the_text(text in any_text()) {
        for model in [&*SMOLLM2, &GEMMA3.0] {
            let ids = model.encode(&text).unwrap();
            let deltas = streamed(model, &ids);
            prop_assert_eq!(deltas.concat(), model.decode(&ids));
        }
        // Gemma 3 has a token for every byte, so no delta may hold a stand-in for half a character.
        prop_assert_eq!(streamed(&GEMMA3.0, &GEMMA3.0.encode(&text).unwrap()).concat(), text);
    }

    #[test]
    fn the_lower_bound_is_one(text in any_text(), repeat in 1usize..40) {
        let text = text.repeat(repeat);
        for model in [&*SMOLLM2, &GEMMA3.0] {
            prop_assert!(model.least_tokens(&text) <= model.encode(&text).unwrap().len());
        }
        prop_assert!(GEMMA3.0.least_tokens(&text) >= text.len() / 64, "the longest token has 48 bytes");
    }

    #[test]
    fn any_tokens_streamed_equal_any_tokens_whole(ids in prop::collection::vec(0u32..49_152, 0..40)) {
        prop_assert_eq!(streamed(&SMOLLM2, &ids).concat(), SMOLLM2.decode(&ids));
    }

    #[test]
    fn a_stop_string_cuts_the_same_place_whatever_the_tokens(text in any_text(), stop in any_text(), at in 0usize..40) {
        // A stop string that occurs, or one that may not.
        let boundary = |n: usize| (n.min(text.len())..=text.len()).find(|&n| text.is_char_boundary(n)).unwrap();
        let stop = [text[boundary(at)..boundary(at + 4)].to_owned(), stop].into_iter().find(|s| !s.is_empty());
        let stops: Vec<String> = stop.into_iter().collect();
        let ids = GEMMA3.0.encode(&text).unwrap();
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut client = String::new();
        for delta in streamed(&GEMMA3.0, &ids) {
            client += matcher.push(&delta).emit;
        }
        client += matcher.finish();
        let whole = stops.first().and_then(|stop| text.find(stop.as_str())).map_or(text.as_str(), |at| &text[..at]);
        prop_assert_eq!(client, whole);
    }
}
