use std::time::Duration;

use weir_schemas::records::GapStats;

use super::testing::{charge, open, recorder, written};
use super::*;

fn arrivals(tokens: u64) -> Arrivals {
    let at = Instant::now();
    let some = (tokens > 0).then_some(at);
    Arrivals { tokens, first_at: some, last_at: some, ..Arrivals::default() }
}

#[test]
fn what_is_charged_by_how_it_ended() {
    let directory = tempfile::tempdir().unwrap();
    let (recorder, _) = recorder(&directory);
    let counted = |cached, computed, generated| {
        Some(Finished {
            cached_prompt_tokens: cached,
            computed_prompt_tokens: computed,
            generated_tokens: generated,
            ..Finished::default()
        })
    };
    let mut number = 0;
    let mut check = |reason, finished, arrived, expected: (u64, u64, u64)| {
        number += 1;
        let counts = open(&recorder, number, charge()).close(&Ending {
            reason,
            finished,
            arrivals: arrivals(arrived),
        });
        let counts = (counts.prompt_tokens, counts.cached_prompt_tokens, counts.generated_tokens);
        assert_eq!(counts, expected, "{reason:?}");
    };
    check(FinishReason::Stop, counted(32, 68, 7), 7, (100, 32, 7));
    check(FinishReason::Length, counted(0, 100, 7), 7, (100, 0, 7));
    // Before the first token, the prompt as far as it was computed or cached.
    check(FinishReason::Cancelled, counted(32, 16, 0), 0, (48, 32, 0));
    check(FinishReason::Cancelled, counted(0, 0, 0), 0, (0, 0, 0));
    check(FinishReason::Cancelled, counted(0, 100, 3), 3, (100, 0, 3));
    // The engine's count is charged, also where fewer tokens arrived.
    check(FinishReason::Cancelled, counted(0, 100, 4), 3, (100, 0, 4));
    // Without the engine's word, what arrived.
    check(FinishReason::ReplicaLost, None, 3, (100, 0, 3));
    check(FinishReason::ReplicaLost, None, 0, (0, 0, 0));
    check(FinishReason::Rejected, counted(0, 0, 0), 0, (0, 0, 0));
    let records = written(&recorder);
    assert_eq!(records.iter().map(|r| r.data.sequence).collect::<Vec<_>>(), (1..=9).collect::<Vec<u64>>());
    assert!(records.iter().all(|record| !record.data.recovered));
}

#[test]
fn a_crash_charges_the_last_progress_once() {
    let directory = tempfile::tempdir().unwrap();
    {
        let (recorder, unclosed) = recorder(&directory);
        assert!(unclosed.is_empty());
        let mut with_progress = open(&recorder, 1, charge());
        with_progress.progress(&arrivals(3));
        with_progress.progress(&arrivals(5));
        let without = open(&recorder, 2, charge());
        // Dropped without a close, as a crash would.
        drop((with_progress, without));
    }
    let (again, unclosed) = recorder(&directory);
    assert_eq!(unclosed.len(), 2);
    again.close_recovered(unclosed);
    let records = written(&again);
    let charged: Vec<_> = records
        .iter()
        .map(|r| (r.id.clone(), r.data.prompt_tokens, r.data.generated_tokens, r.data.recovered))
        .collect();
    let id = |number| RequestId::from_u128(number).to_string();
    assert_eq!(charged, [(id(1), 100, 5, true), (id(2), 0, 0, true)]);
    drop(again);
    assert!(recorder(&directory).1.is_empty());
}

#[test]
fn one_that_goes_away_while_it_is_prepared_is_recorded_and_a_refused_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (recorder, _) = recorder(&directory);
    let received = |number| Received::new(recorder.clone(), RequestId::from_u128(number), charge());
    drop(received(1));
    received(2).refused();
    let records = written(&recorder);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].id, RequestId::from_u128(1).to_string());
    assert_eq!(records[0].data.finish_reason, FinishReason::Cancelled);
}

#[test]
fn targets_are_judged_by_the_first_token_and_the_mean_gap() {
    let directory = tempfile::tempdir().unwrap();
    let (recorder, _) = recorder(&directory);
    let start = Instant::now();
    let mut gaps = GapStats::default();
    [150_000, 40_000].into_iter().for_each(|gap_us| gaps.record(gap_us));
    let record = Received::new(recorder.clone(), RequestId::from_u128(1), charge()).open(1, start).unwrap();
    let arrivals = Arrivals {
        tokens: 3,
        first_at: Some(start + Duration::from_millis(201)),
        last_at: Some(start + Duration::from_millis(391)),
        gaps,
        ..Arrivals::default()
    };
    record.close(&Ending { reason: FinishReason::Stop, finished: None, arrivals });
    let data = written(&recorder).remove(0).data;
    assert_eq!((data.ttft_us, data.decode_us), (Some(201_000), 190_000));
    assert_eq!((data.slo.ttft_met, data.slo.itl_met), (Some(false), Some(true)));
}
