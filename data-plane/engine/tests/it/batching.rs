//! Continuous batching: steps are shared, nobody waits for a long answer, and nothing shows in the tokens.

use weir_engine::{FinishReason, SequenceId};

use crate::support::{Harness, request};

#[test]
fn fifteen_short_answers_that_come_later_finish_before_a_long_one() {
    let mut harness = Harness::new(200, 16);
    let long = harness.add(request(1, 30, 400));
    for _ in 0..20 {
        harness.step();
    }
    let short: Vec<SequenceId> = (0..15).map(|seed| harness.add(request(100 + seed, 20, 10))).collect();
    harness.run(1000);
    assert_eq!(harness.finished.len(), 16);
    assert_eq!(harness.finished.last(), Some(&long));
    let counters = *harness.engine.counters();
    assert_eq!(counters.steps, 400, "the long answer's steps carry all the others");
    assert_eq!(counters.rows_max, 16);
    // One row for the prompt and one for each further token.
    assert_eq!(counters.rows_sum, 400 + 15 * 10);
    assert_eq!(counters.prefill_tokens, 30 + 15 * 20);
    assert_eq!(counters.decode_tokens, 399 + 15 * 9);
    assert_eq!(counters.generated_tokens, 400 + 150);
    assert_eq!(counters.admitted, 16);
    assert_eq!(counters.finished_length, 16);
    assert_eq!(counters.preemptions, 0);
    assert!(short.iter().all(|id| harness.reason(*id) == FinishReason::Length));
    harness.assert_all_free();
}

#[test]
fn decodes_run_in_every_step_while_a_long_prompt_is_computed_in_capped_chunks() {
    let mut harness = Harness::new(200, 8);
    let decoding = harness.add(request(1, 10, 60));
    harness.step();
    let long_prompt = harness.add(request(2, 1000, 5));
    let cap = harness.config.prefill_tokens_beside_decode_max;
    let mut boundaries = Vec::new();
    while harness.outcomes[&long_prompt].tokens.is_empty() {
        let before = harness.outcomes[&decoding].tokens.len();
        let report = harness.step();
        assert_eq!(harness.outcomes[&decoding].tokens.len(), before + 1);
        assert!(report.prefill_tokens <= cap);
        boundaries
            .extend(harness.last_plan().iter().filter(|row| row.sequence == long_prompt.0).map(|r| r.end));
    }
    let expected: Vec<u32> = (1..=8).map(|chunk| (chunk * cap).min(1000)).collect();
    assert_eq!(boundaries, expected);
    harness.run(100);
}

#[test]
fn short_prompts_are_not_stuck_behind_long_ones() {
    let mut harness = Harness::new(800, 8);
    harness.add(request(1, 10, 200));
    harness.step();
    let long: Vec<SequenceId> = (2..5).map(|seed| harness.add(request(seed, 3000, 5))).collect();
    for _ in 0..4 {
        harness.step();
    }
    let short = harness.add(request(9, 100, 1));
    harness.step();
    harness.step();
    assert_eq!(harness.finished, [short], "a chunk in each of two steps");
    harness.run(300);
    assert_eq!(harness.finished[1..4], long, "each in its turn");
}

#[test]
fn prompts_that_arrive_together_are_completed_one_after_another() {
    let mut harness = Harness::new(400, 16);
    let ids: Vec<SequenceId> = (0..16).map(|seed| harness.add(request(seed, 300, 1))).collect();
    harness.run(100);
    assert_eq!(harness.finished, ids);
    // What is lost is what does not hold a whole chunk.
    let counters = harness.engine.counters();
    assert_eq!(counters.prefill_tokens, 16 * 300);
    assert!(counters.steps <= 16 * 300 / u64::from(harness.config.step_tokens_max - 64) + 1);
}

#[test]
fn a_full_batch_leaves_room_for_a_prefill_chunk() {
    // Seven of eight seats decode; the step's budget still holds a chunk.
    let mut harness = Harness::with_config(400, 8, |config| {
        config.step_tokens_max = 8 + 64;
        config.prefill_tokens_beside_decode_max = 64;
    });
    for seed in 0..7 {
        harness.add(request(seed, 4, 300));
    }
    for _ in 0..3 {
        harness.step();
    }
    let late = harness.add(request(9, 640, 1));
    for _ in 0..10 {
        harness.step();
    }
    assert_eq!(harness.finished, [late]);
    harness.run(400);
}

#[test]
fn stop_tokens_and_verdicts_end_a_sequence_at_once_and_are_counted() {
    let mut harness = Harness::new(50, 4);
    let reference = harness.add(request(5, 20, 50));
    harness.run(100);
    let tokens = harness.outcomes[&reference].tokens.clone();
    let mut with_stop = request(5, 20, 50);
    with_stop.stop_tokens = vec![tokens[6]];
    let stopped = harness.add(with_stop);
    let judged = harness.try_add(request(5, 20, 50), tokens[3]).unwrap();
    harness.run(100);
    let until = |id: SequenceId, last: usize| {
        assert_eq!(harness.reason(id), FinishReason::Stop);
        assert_eq!(harness.outcomes[&id].tokens, tokens[..=last]);
        assert_eq!(harness.usage(id).generated_tokens as usize, last + 1);
    };
    let first_multiple = tokens.iter().position(|token| token.is_multiple_of(tokens[3])).unwrap();
    until(stopped, tokens.iter().position(|token| *token == tokens[6]).unwrap());
    until(judged, first_multiple);
    assert_eq!(harness.engine.counters().finished_stop, 2);
}

#[test]
fn a_newcomer_leaves_those_who_run_a_page_to_grow_into() {
    let mut harness = Harness::new(20, 4);
    let growing = harness.add(request(1, 16, 100));
    harness.step();
    // Would fit into the 18 pages that are left, and be preempted a few steps later.
    let newcomer = harness.add(request(2, 280, 5));
    harness.run(200);
    assert_eq!(harness.finished, [growing, newcomer]);
    assert_eq!(harness.engine.counters().preemptions, 0);
}

#[test]
fn running_out_of_pages_preempts_and_fails_nobody() {
    // Four sequences of 12 blocks each at full length, on 20 pages.
    let mut harness = Harness::new(20, 4);
    let ids: Vec<SequenceId> = (0..4).map(|seed| harness.add(request(seed, 16, 170))).collect();
    harness.run(3000);
    assert!(harness.engine.counters().preemptions > 0);
    assert!(ids.iter().all(|id| harness.reason(*id) == FinishReason::Length));
    let preemptions: u32 = ids.iter().map(|id| harness.usage(*id).preemptions).sum();
    assert_eq!(u64::from(preemptions), harness.engine.counters().preemptions);
    // The newest gives way, so the oldest is never recomputed.
    assert_eq!(harness.usage(ids[0]).preemptions, 0);
    assert_eq!(harness.finished[0], ids[0]);
    harness.assert_all_free();
}
