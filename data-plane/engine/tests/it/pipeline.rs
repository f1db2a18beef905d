//! Two steps in flight: the next one is planned and submitted before this one's tokens are known.

use weir_engine::{Class, EngineError, FinishReason, SequenceRequest};

use crate::support::{Harness, request};

fn pipelined(num_pages: u32, seats: u32) -> Harness {
    Harness::pipelined(num_pages, seats, 2, |_| {})
}

/// Submits until the executor takes no more.
fn fill(harness: &mut Harness) -> usize {
    let mut submitted = 0;
    while let Ok(true) = harness.submit() {
        submitted += 1;
    }
    submitted
}

#[test]
fn the_next_step_is_submitted_before_the_last_one_is_collected() {
    let mut harness = pipelined(50, 4);
    let ids = [harness.add(request(1, 20, 10)), harness.add(request(2, 30, 10))];
    assert_eq!(fill(&mut harness), 2);
    assert!(matches!(harness.submit(), Err(EngineError::OutOfTurn)));
    {
        let shared = harness.shared();
        let starts_of = |plan: usize| shared.plans[plan].iter().map(|row| row.start).collect::<Vec<_>>();
        let starts = [starts_of(0), starts_of(1)];
        assert_eq!(
            starts,
            [vec![0, 0], vec![20, 30]],
            "decodes follow prompts whose tokens nobody knows yet"
        );
    }
    harness.run(20);
    for id in ids {
        assert_eq!((harness.reason(id), harness.usage(id).generated_tokens), (FinishReason::Length, 10));
    }
    assert_eq!(harness.engine.counters().steps, 10, "what will be over by its length has no row too many");
    harness.assert_all_free();
}

#[test]
fn a_stop_discards_the_row_in_flight_and_its_pages_come_back_with_it() {
    let mut harness = pipelined(50, 4);
    let stopped = harness.try_add(request(1, 16, 200), 7).unwrap();
    let mut steps = 0;
    while harness.outcomes[&stopped].end.is_none() {
        assert_eq!(fill(&mut harness).min(1), 1);
        harness.step();
        steps += 1;
    }
    let generated = harness.usage(stopped).generated_tokens;
    assert_eq!(steps, generated, "one token a step");
    assert!(harness.engine.load().referenced_blocks > 0, "the step in flight still names them");
    assert!(harness.engine.has_work());
    let report = harness.step();
    assert_eq!(
        (report.num_rows, report.decode_tokens, report.prefill_tokens),
        (1, 0, 0),
        "discarded, not charged"
    );
    assert!(!harness.engine.has_work());
    harness.assert_all_free();
    assert_eq!(harness.engine.counters().generated_tokens, u64::from(generated));
}

#[test]
fn a_cancelled_sequence_is_over_at_once_and_its_seat_comes_back_with_its_pages() {
    let mut harness = pipelined(50, 1);
    let victim = harness.add(request(1, 40, 50));
    let next = harness.add(request(2, 40, 3));
    harness.step();
    assert_eq!(fill(&mut harness), 1);
    harness.cancel(victim);
    let held = harness.engine.load().referenced_blocks;
    assert_eq!(held, 3, "two steps in flight name them");
    harness.step();
    assert_eq!(harness.reason(victim), FinishReason::Cancelled);
    assert_eq!(harness.usage(victim).generated_tokens, 1, "what was in flight is not charged");
    harness.run(20);
    assert_eq!(harness.reason(next), FinishReason::Length);
    harness.assert_all_free();
}

#[test]
fn who_runs_out_of_pages_waits_for_those_that_steps_in_flight_name() {
    // Sixteen sequences that grow to nine blocks each, on a pool for three of them.
    let mut harness = pipelined(30, 16);
    let ids: Vec<_> = (0..16).map(|seed| harness.add(request(seed, 16, 120))).collect();
    harness.run(5000);
    assert!(harness.engine.counters().preemptions > 0);
    for id in ids {
        assert_eq!((harness.reason(id), harness.usage(id).generated_tokens), (FinishReason::Length, 120));
    }
    harness.assert_all_free();
}

#[test]
fn batch_gives_its_seat_to_interactive_with_the_step_that_names_it() {
    let mut harness = pipelined(100, 2);
    let batch = |seed| SequenceRequest { class: Class::Batch, ..request(seed, 20, 200) };
    let background = [harness.add(batch(1)), harness.add(batch(2))];
    for _ in 0..5 {
        harness.step();
    }
    let urgent = harness.add(request(3, 20, 5));
    for _ in 0..9 {
        harness.step();
    }
    assert!(harness.outcomes[&urgent].end.is_some(), "a seat within two steps, five tokens, no more");
    let preemptions: Vec<_> = background.iter().map(|_| harness.engine.counters().preemptions).collect();
    assert_eq!(preemptions[0], 1, "one gave way, not both");
    harness.run(1000);
    assert!(background.iter().all(|&id| harness.reason(id) == FinishReason::Length));
    harness.assert_all_free();
}

#[test]
fn nothing_follows_a_mask_that_is_not_known_and_nobody_else_waits_for_it() {
    let mut harness = pipelined(50, 4);
    let constrained = SequenceRequest { is_constrained: true, ..request(1, 20, 12) };
    let (constrained, free) = (harness.add(constrained), harness.add(request(2, 20, 12)));
    // The first plan's masks follow from the prompt, the second's from a token in flight.
    assert_eq!(fill(&mut harness), 2);
    assert!(matches!(harness.submit(), Err(EngineError::OutOfTurn)));
    let report = harness.step();
    assert_eq!(report.num_rows, 2);
    harness.run(12);
    for id in [constrained, free] {
        assert_eq!(harness.usage(id).generated_tokens, 12);
    }
    let remainders: Vec<_> = harness.outcomes[&constrained].tokens.iter().map(|token| token % 3).collect();
    assert!(remainders.windows(2).all(|pair| pair[0] == pair[1]), "{remainders:?}");
    assert_eq!(harness.engine.counters().steps, 12, "as many as without a mask");
    harness.assert_all_free();
}

#[test]
fn a_refused_plan_ends_its_sequences_and_the_step_before_it_is_kept() {
    let mut harness = pipelined(50, 4);
    let id = harness.add(request(1, 20, 10));
    assert!(harness.submit().unwrap());
    harness.allow_errors();
    harness.shared().fail_submit = true;
    assert!(matches!(harness.submit(), Err(EngineError::Executor(_))));
    harness.run(5);
    assert_eq!((harness.reason(id), harness.usage(id).generated_tokens), (FinishReason::Error, 0));
    harness.assert_all_free();
}

#[test]
fn a_lost_device_ends_everything() {
    let mut harness = pipelined(50, 2);
    let ids: Vec<_> = (0..5).map(|seed| harness.add(request(seed, 20, 10))).collect();
    harness.step();
    harness.allow_errors();
    harness.shared().fail_collect = true;
    let error = harness.step_with(|_| {}).unwrap_err();
    assert!(error.is_fatal());
    harness.fail_all();
    for id in ids {
        assert_eq!(harness.reason(id), FinishReason::Error);
    }
    assert!(!harness.engine.has_work());
    harness.assert_all_free();
}
