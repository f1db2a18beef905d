//! A request may end at any stage: nothing of it stays behind, and there is one right record of it.

use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::{FinishReason, Generate};

use crate::support::{TestWorker, generate, records, request};

fn prompt(length: u32, salt: u32) -> Vec<u32> {
    (0..length).map(|n| 100 + (n * 31 + salt * 17) % 40_000).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_at_every_stage() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;

    // On the heels of its request: waiting, or in its prefill.
    let early = session.send(generate(1, prompt(600, 1), 50)).await;
    session.cancel(early).await;
    let (_, finished) = session.finish(early).await;
    assert_eq!(finished.reason(), FinishReason::Cancelled);
    assert!(finished.computed_prompt_tokens <= finished.prompt_tokens);
    let early_computed = finished.computed_prompt_tokens;
    worker.wait_until_idle().await;

    // In its decode.
    let late = session.send(generate(2, prompt(40, 2), 900)).await;
    session.read_until(late, |answer| answer.tokens.len() >= 5).await;
    session.cancel(late).await;
    let (late_answer, finished) = session.finish(late).await;
    assert_eq!(finished.reason(), FinishReason::Cancelled);
    assert!(late_answer.tokens.len() < 900);
    assert_eq!(finished.computed_prompt_tokens, 40);
    worker.wait_until_idle().await;

    // After its last token, and one that never was: nothing happens.
    let (_, finished) = session.complete(generate(3, prompt(20, 3), 3)).await;
    assert_eq!(finished.reason(), FinishReason::Length);
    session.cancel(3).await;
    session.cancel(12345).await;

    // Waiting behind sixteen that hold every seat.
    let mut held = Vec::new();
    for n in 0..16 {
        held.push(session.send(generate(100 + u128::from(n), prompt(16, 50 + n), 400)).await);
    }
    let waiting = session.send(generate(4, prompt(30, 4), 50)).await;
    session.cancel(waiting).await;
    let (_, finished) = session.finish(waiting).await;
    assert_eq!(finished.reason(), FinishReason::Cancelled);
    for handle in &held {
        session.cancel(*handle).await;
        session.finish(*handle).await;
    }
    worker.wait_until_idle().await;

    let folder = worker.stop().await;
    let records = records(folder.path());
    assert_eq!(records.len(), 4 + 16);
    let of = |number| &records[&request(number)].data;
    assert_eq!((of(1).outcome, of(1).computed_tokens), (ExecutionOutcome::Cancelled, early_computed));
    assert_eq!(of(1).generated_tokens, 0);
    assert_eq!(of(2).outcome, ExecutionOutcome::Cancelled);
    assert_eq!(of(2).generated_tokens, late_answer.tokens.len() as u64);
    assert_eq!((of(3).outcome, of(3).generated_tokens), (ExecutionOutcome::Length, 3));
    assert_eq!(of(4).outcome, ExecutionOutcome::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_waits_gives_up_and_all_its_choices_with_it() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    // At once, and there is a seat.
    let hasty = session.send(generate(1, prompt(30, 1), 5)).await;
    session.cancel_if_waiting(hasty).await;
    let (_, finished) = session.finish(hasty).await;
    assert_ne!(finished.reason(), FinishReason::Cancelled);
    // Behind sixteen that hold every seat.
    let mut held = Vec::new();
    for n in 0..16 {
        held.push(session.send(generate(100 + u128::from(n), prompt(16, 50 + n), 400)).await);
    }
    session.read_until(held[15], |answer| !answer.tokens.is_empty()).await;
    let both = session.send(Generate { n: 2, ..generate(2, prompt(30, 2), 50) }).await;
    session.cancel_if_waiting(held[0]).await;
    session.cancel_if_waiting(both).await;
    for handle in [both, both + 1] {
        let (_, finished) = session.finish(handle).await;
        assert_eq!((finished.reason(), finished.computed_prompt_tokens), (FinishReason::Cancelled, 0));
    }
    session.read_until(held[0], |answer| answer.tokens.len() > 20).await;
    for handle in held {
        session.cancel(handle).await;
        session.finish(handle).await;
    }
    worker.wait_until_idle().await;
    let folder = worker.stop().await;
    let gave_up = &records(folder.path())[&request(2)].data;
    assert_eq!((gave_up.outcome, gave_up.computed_tokens), (ExecutionOutcome::Cancelled, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_goes_away_takes_its_sequences_with_it() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    for n in 0..8u32 {
        session.send(generate(n.into(), prompt(32, n), 900)).await;
    }
    session.read_until(1, |answer| !answer.tokens.is_empty()).await;
    drop(session);
    worker.wait_until_idle().await;
    let folder = worker.stop().await;
    let records = records(folder.path());
    assert_eq!(records.len(), 8);
    assert!(records.values().all(|record| record.data.outcome == ExecutionOutcome::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_aborts_leak_nothing() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    let mut handles = Vec::new();
    for n in 0..300u32 {
        let handle = session.send(generate(u128::from(n), prompt(8 + n % 90, n), 64)).await;
        handles.push(handle);
        // Each at another moment of its life: some at once, some while others run, some after a few tokens.
        if n % 3 == 0 {
            session.cancel(handle).await;
        }
        if n % 7 == 0 {
            session.read_until(handle, |answer| answer.finished.is_some() || answer.tokens.len() > 1).await;
        }
        if n >= 20 {
            session.cancel(handles[n as usize - 20]).await;
        }
    }
    for handle in &handles {
        session.cancel(*handle).await;
    }
    for handle in handles {
        session.finish(handle).await;
    }
    let load = worker.wait_until_idle().await;
    assert_eq!((load.pages_referenced, load.queued_prefill_tokens), (0, 0));
    let folder = worker.stop().await;
    assert_eq!(records(folder.path()).len(), 300);
}
