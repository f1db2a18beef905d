//! Random requests, cancellations and faults on small pools: every invariant after every step, every sequence
//! gets exactly its tokens, nobody starves, and everything is free at the end.

use proptest::prelude::*;
use weir_engine::{AddError, Class, SequenceId, TenantIndex};

use crate::support::{Harness, harness, request};

#[derive(Clone, Debug)]
enum Operation {
    Add { prompt: u64, seed: u64, len: usize, max_tokens: u32, tenant: u64, kind: u8, stop: u32 },
    Steps(u8),
    Cancel(usize),
    CancelInFlight(usize),
    FailSubmit,
    FailCollect,
    TruncateOutput,
    Unusable(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let add = (0..4_u64, 0..3_u64, 1..150_usize, 1..60_u32, 0..3_u64, any::<u8>(), 0..4_u32).prop_map(
        |(prompt, seed, len, max_tokens, tenant, kind, stop)| Operation::Add {
            prompt,
            seed,
            len,
            max_tokens,
            tenant,
            kind,
            stop: [0, 0, 7, 40][stop as usize],
        },
    );
    prop_oneof![
        12 => add,
        12 => (1..12_u8).prop_map(Operation::Steps),
        3 => any::<usize>().prop_map(Operation::Cancel),
        3 => any::<usize>().prop_map(Operation::CancelInFlight),
        1 => Just(Operation::FailSubmit),
        1 => Just(Operation::FailCollect),
        1 => Just(Operation::TruncateOutput),
        1 => any::<usize>().prop_map(Operation::Unusable),
    ]
}

fn pick(harness: &Harness, index: usize) -> Option<SequenceId> {
    let open = harness.unfinished();
    (!open.is_empty()).then(|| open[index % open.len()])
}

fn apply(harness: &mut Harness, operation: &Operation) {
    match *operation {
        Operation::Add { prompt, seed, len, max_tokens, tenant, kind, stop } => {
            let mut request = request(seed, len, max_tokens);
            request.prompt = harness::prompt(prompt, len);
            request.tenant = TenantIndex(tenant);
            request.tenant_weight = tenant as u32;
            request.cache_salt = [tenant as u8; 32];
            request.class = if kind & 1 == 1 { Class::Batch } else { Class::Interactive };
            request.is_constrained = kind & 6 == 6;
            request.stop_tokens = vec![3, 5];
            let blocks = (len as u64 + u64::from(max_tokens) - 1).div_ceil(16);
            let num_pages = harness.engine.capacity().num_pages;
            match harness.try_add(request, stop) {
                Err(AddError::NeverFits { .. }) => assert!(blocks > u64::from(num_pages)),
                Err(error) => panic!("{error}"),
                Ok(_) => assert!(blocks <= u64::from(num_pages)),
            }
        }
        Operation::Steps(count) => (0..count).for_each(|_| {
            harness.step();
        }),
        Operation::Cancel(index) => {
            if let Some(id) = pick(harness, index) {
                harness.cancel(id);
                harness.engine.check_integrity().unwrap();
            }
        }
        Operation::CancelInFlight(index) => {
            let id = pick(harness, index);
            harness.step_with(|harness| id.into_iter().for_each(|id| harness.cancel(id))).unwrap();
            assert!(id.is_none_or(|id| harness.outcomes[&id].end.is_some()), "ends within the step");
        }
        Operation::FailSubmit | Operation::FailCollect | Operation::TruncateOutput => {
            fail_a_step(harness, operation);
        }
        Operation::Unusable(index) => {
            if let Some(id) = pick(harness, index) {
                harness.allow_errors();
                harness.shared().unusable.insert(id.0);
                harness.step();
                harness.shared().unusable.clear();
            }
        }
    }
}

fn fail_a_step(harness: &mut Harness, operation: &Operation) {
    harness.allow_errors();
    {
        let mut shared = harness.shared();
        shared.fail_submit = matches!(operation, Operation::FailSubmit);
        shared.fail_collect = matches!(operation, Operation::FailCollect);
        shared.truncate_output = matches!(operation, Operation::TruncateOutput);
    }
    // Fails unless there was nothing to submit, nothing to collect, or no row to cut off.
    if let Ok(report) = harness.step_with(|_| {}) {
        let samples = harness.last_plan().iter().any(|row| row.samples);
        let was_submitted = !harness.shared().fail_submit;
        assert!(match operation {
            Operation::FailSubmit => !was_submitted,
            Operation::TruncateOutput => report.num_rows == 0 || !samples,
            _ => report.num_rows == 0,
        });
    }
    let mut shared = harness.shared();
    (shared.fail_submit, shared.fail_collect, shared.truncate_output) = (false, false, false);
    drop(shared);
    harness.engine.check_integrity().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_gets_its_tokens_whatever_happens_around_it(
        num_pages in 2..40_u32,
        seats in 1..12_u32,
        bypass_max in 1..6_u32,
        seat_quantum_steps in 1..40_u32,
        max_in_flight in 1..3_u32,
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        let mut harness = Harness::pipelined(num_pages, seats, max_in_flight, |config| {
            config.bypass_max = bypass_max;
            config.seat_quantum_steps = seat_quantum_steps;
        });
        for operation in &operations {
            apply(&mut harness, operation);
        }
        harness.run(30_000);
        harness.assert_all_free();
        check_counters(&harness);
    }
}

fn check_counters(harness: &Harness) {
    let counters = harness.engine.counters();
    let ends = harness.outcomes.values().map(|outcome| outcome.end.unwrap().1);
    let sum = ends.fold((0, 0, 0, 0), |sum, usage| {
        (
            sum.0 + u64::from(usage.generated_tokens),
            sum.1 + u64::from(usage.cached_prompt_tokens),
            sum.2 + u64::from(usage.computed_prompt_tokens),
            sum.3 + u64::from(usage.preemptions),
        )
    });
    assert_eq!(counters.generated_tokens, sum.0);
    assert_eq!(counters.cached_prompt_tokens, sum.1);
    assert!(counters.prefill_tokens - counters.recomputed_tokens >= sum.2);
    assert_eq!(counters.preemptions, sum.3);
    let finished = counters.finished_stop
        + counters.finished_length
        + counters.finished_cancelled
        + counters.finished_error;
    assert_eq!(finished as usize, harness.outcomes.len());
}
