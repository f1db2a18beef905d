//! Refusals, cancellations at every stage, and steps that fail.

use weir_engine::{AddError, EngineError, FinishReason, SequenceRequest, TenantIndex};

use crate::support::{Harness, request};

#[test]
fn what_can_never_run_is_refused_at_once() {
    let mut harness = Harness::with_config(20, 4, |config| {
        config.waiting_max = 3;
        config.waiting_tokens_max = 400;
    });
    let base = || request(1, 10, 10);
    let mut refuse = |request: SequenceRequest| harness.try_add(request, 0).unwrap_err();
    assert_eq!(refuse(SequenceRequest { prompt: Vec::new(), ..base() }), AddError::EmptyPrompt);
    assert_eq!(refuse(SequenceRequest { max_tokens: 0, ..base() }), AddError::NoOutput);
    assert_eq!(
        refuse(SequenceRequest { prompt: vec![1, 2, 997], ..base() }),
        AddError::UnknownToken { position: 2, vocab_size: 997 }
    );
    let mut hot = base();
    hot.sampling.temperature = f32::NAN;
    assert_eq!(refuse(hot), AddError::InvalidSampling("temperature"));
    assert_eq!(
        refuse(SequenceRequest { max_tokens: 4087, ..base() }),
        AddError::ContextLength { tokens: 4097, context_limit: 4096 }
    );
    assert_eq!(
        refuse(SequenceRequest { max_tokens: u32::MAX, ..base() }),
        AddError::ContextLength { tokens: 10 + u64::from(u32::MAX), context_limit: 4096 }
    );
    assert_eq!(refuse(request(1, 300, 22)), AddError::NeverFits { blocks: 21, num_pages: 20 });
    assert!(!harness.engine.has_work(), "nothing of a refused request remains");
    // One token less fits exactly, as the last token needs no room.
    let largest = harness.add(request(1, 300, 21));
    assert_eq!(harness.try_add(request(2, 101, 1), 0), Err(AddError::QueueFull));
    harness.add(request(3, 20, 1));
    harness.add(request(4, 20, 1));
    assert_eq!(harness.try_add(request(5, 20, 1), 0), Err(AddError::QueueFull));
    harness.run(100);
    assert_eq!(harness.reason(largest), FinishReason::Length);
    harness.assert_all_free();
}

#[test]
fn a_waiting_sequence_is_cancelled_at_once() {
    let mut harness = Harness::new(20, 1);
    let running = harness.add(request(1, 20, 50));
    harness.step();
    let waiting = harness.add(request(2, 100, 50));
    harness.cancel(waiting);
    let load = harness.engine.load();
    assert_eq!((load.waiting_interactive, load.queued_prefill_tokens), (0, 0));
    let report = harness.step();
    assert_eq!(report.num_rows, 1);
    assert_eq!(harness.reason(waiting), FinishReason::Cancelled);
    let usage = harness.usage(waiting);
    assert_eq!((usage.cached_prompt_tokens, usage.computed_prompt_tokens, usage.prompt_tokens), (0, 0, 100));
    harness.cancel(running);
    assert_eq!(harness.reason(running), FinishReason::Cancelled, "told at once");
    harness.cancel(running);
    assert_eq!(harness.engine.load().referenced_blocks, 0);
    assert!(!harness.engine.has_work());
    assert_eq!(harness.step().num_rows, 0);
    harness.assert_all_free();
}

#[test]
fn cancelling_mid_prefill_charges_how_far_the_prompt_got() {
    let mut harness = Harness::new(200, 2);
    let chunk = harness.config.step_tokens_max / 64 * 64;
    let id = harness.add(request(1, 1000, 5));
    harness.step();
    harness.cancel(id);
    assert_eq!(harness.engine.load().referenced_blocks, 0);
    harness.step();
    assert_eq!(harness.usage(id).computed_prompt_tokens, chunk);
    // What it computed is found by the next one, which is cancelled further on.
    let next = harness.add(request(1, 1000, 5));
    harness.step();
    harness.cancel(next);
    harness.step();
    let usage = harness.usage(next);
    assert_eq!((usage.cached_prompt_tokens, usage.computed_prompt_tokens), (chunk, chunk));
}

#[test]
fn cancelled_in_flight_its_row_is_discarded_and_its_pages_are_free_within_the_step() {
    let mut harness = Harness::new(50, 4);
    let (victim, other) = (harness.add(request(1, 20, 50)), harness.add(request(2, 20, 5)));
    harness.step();
    harness.step();
    harness
        .step_with(|harness| {
            harness.cancel(victim);
            assert!(harness.engine.load().referenced_blocks > 2, "the submission still names them");
        })
        .unwrap();
    assert_eq!(harness.reason(victim), FinishReason::Cancelled);
    assert_eq!(harness.usage(victim).generated_tokens, 2, "the token in flight is not charged");
    assert_eq!(harness.outcomes[&other].tokens.len(), 3);
    harness.run(10);
    harness.assert_all_free();
}

#[test]
fn a_thousand_aborts_leave_nothing_behind() {
    let mut harness = Harness::new(64, 8);
    for round in 0..1000_u64 {
        let mut aborted = request(round % 37, 10 + (round % 300) as usize, 40);
        aborted.tenant = TenantIndex(round % 5);
        let id = harness.add(aborted);
        for _ in 0..round % 7 {
            harness.step();
        }
        harness.cancel(id);
        assert!(harness.outcomes[&id].end.is_some());
        harness.step();
    }
    assert!(!harness.engine.has_work());
    harness.assert_all_free();
    assert_eq!(harness.finished.len(), 1000);
}

#[test]
fn a_failed_step_ends_its_sequences_and_no_others() {
    let mut harness = Harness::new(50, 2);
    let in_step = [harness.add(request(1, 20, 10)), harness.add(request(2, 20, 10))];
    let waiting = harness.add(request(3, 20, 10));
    harness.step();
    harness.allow_errors();
    harness.shared().fail_collect = true;
    assert!(matches!(harness.step_with(|_| {}), Err(EngineError::Executor(_))));
    assert_eq!(harness.engine.load().referenced_blocks, 0);
    harness.run(20);
    for id in in_step {
        assert_eq!(harness.reason(id), FinishReason::Error);
        assert_eq!(harness.usage(id).generated_tokens, 1);
    }
    assert_eq!(harness.reason(waiting), FinishReason::Length);
    assert_eq!(harness.engine.counters().finished_error, 2);
    harness.assert_all_free();
}

#[test]
fn logits_without_a_number_end_only_their_own_sequence() {
    let mut harness = Harness::new(50, 4);
    let (bad, good) = (harness.add(request(1, 20, 10)), harness.add(request(2, 20, 10)));
    harness.step();
    harness.allow_errors();
    harness.shared().unusable.insert(bad.0);
    harness.run(20);
    assert_eq!(harness.reason(bad), FinishReason::Error);
    assert_eq!(harness.reason(good), FinishReason::Length);
}

#[test]
fn submit_and_collect_alternate() {
    let mut harness = Harness::new(50, 4);
    assert!(!harness.submit().unwrap());
    assert_eq!(harness.step().num_rows, 0);
    harness.add(request(1, 20, 10));
    assert!(harness.submit().unwrap());
    assert!(matches!(harness.submit(), Err(EngineError::OutOfTurn)));
    assert_eq!(harness.step().num_rows, 1);
}
