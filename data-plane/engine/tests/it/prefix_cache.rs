//! What a second request finds of a first one's computed blocks.

use crate::support::{Harness, harness::prompt, request};

/// Runs a request to its end and gives its cached and computed prompt tokens.
fn cached_and_computed(harness: &mut Harness, request: weir_engine::SequenceRequest) -> (u32, u32) {
    let prefilled = harness.engine.counters().prefill_tokens;
    let id = harness.add(request);
    harness.run(500);
    let usage = harness.usage(id);
    let computed = harness.engine.counters().prefill_tokens - prefilled;
    assert_eq!(u64::from(usage.computed_prompt_tokens), computed);
    (usage.cached_prompt_tokens, usage.computed_prompt_tokens)
}

#[test]
fn a_shared_prefix_is_computed_once() {
    let mut harness = Harness::new(100, 4);
    let mut first = request(1, 100, 1);
    first.prompt[..70].copy_from_slice(&prompt(50, 70));
    let mut second = request(2, 100, 1);
    second.prompt[..70].copy_from_slice(&prompt(50, 70));
    assert_eq!(cached_and_computed(&mut harness, first), (0, 100));
    // Four full blocks of the 70 common tokens.
    assert_eq!(cached_and_computed(&mut harness, second), (64, 36));
    assert_eq!(harness.engine.counters().cached_prompt_tokens, 64);
}

#[test]
fn a_prompt_whose_every_block_is_cached_still_computes_its_last_token() {
    let mut harness = Harness::new(100, 4);
    for (len, again) in [(64, 48), (65, 64), (63, 48), (16, 0), (1, 0), (17, 16)] {
        let seed = 1000 + len as u64;
        assert_eq!(cached_and_computed(&mut harness, request(seed, len, 3)), (0, len as u32));
        assert_eq!(cached_and_computed(&mut harness, request(seed, len, 3)), (again, len as u32 - again));
    }
}

#[test]
fn another_salt_gets_nothing() {
    let mut harness = Harness::new(100, 4);
    let mut other = request(1, 100, 1);
    other.cache_salt = [1; 32];
    assert_eq!(cached_and_computed(&mut harness, request(1, 100, 1)), (0, 100));
    assert_eq!(cached_and_computed(&mut harness, other.clone()), (0, 100));
    assert_eq!(cached_and_computed(&mut harness, other), (96, 4));
}

#[test]
fn an_answer_is_found_by_the_next_turn() {
    let mut harness = Harness::new(100, 4);
    let first = harness.add(request(1, 40, 60));
    harness.run(100);
    let mut next_turn = request(1, 40, 5);
    next_turn.prompt.extend(&harness.outcomes[&first].tokens);
    next_turn.prompt.extend(prompt(77, 10));
    // 99 of the 100 tokens were computed: the last one was only sampled.
    assert_eq!(cached_and_computed(&mut harness, next_turn), (96, 14));
}

#[test]
fn running_sequences_share_pages() {
    let mut harness = Harness::new(100, 4);
    harness.add(request(1, 160, 100));
    for _ in 0..5 {
        harness.step();
    }
    let before = harness.engine.load().referenced_blocks;
    harness.add(request(1, 160, 100));
    harness.step();
    // Nine shared blocks; its own are the recomputed tenth and one to grow into.
    assert_eq!(harness.engine.load().referenced_blocks, before + 2);
    harness.run(200);
    harness.assert_all_free();
}

#[test]
fn cached_blocks_give_way_to_new_ones() {
    let mut harness = Harness::new(10, 2);
    for seed in 0..20 {
        assert_eq!(cached_and_computed(&mut harness, request(seed, 150, 2)), (0, 150));
        let load = harness.engine.load();
        assert_eq!(load.free_blocks + load.cached_blocks, 10);
    }
    assert_eq!(cached_and_computed(&mut harness, request(19, 150, 2)), (144, 6));
}

#[test]
fn a_preempted_sequence_is_not_counted_twice() {
    let mut harness = Harness::new(12, 3);
    let ids: Vec<_> = (0..3).map(|seed| harness.add(request(seed, 40, 100))).collect();
    harness.run(2000);
    assert!(harness.engine.counters().recomputed_tokens > 0);
    for id in ids {
        let usage = harness.usage(id);
        assert_eq!((usage.cached_prompt_tokens, usage.computed_prompt_tokens), (0, 40));
    }
}
