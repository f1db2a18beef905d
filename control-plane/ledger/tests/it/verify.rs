//! Verification finds nothing where nothing is wrong, and each kind of wrong where it is.

use weir_ledger::{Range, VerifyReport, verify};
use weir_schemas::ids::RequestId;
use weir_schemas::records::{ExecutionOutcome, FinishReason};

use crate::support::{GATEWAY, Ledger, UNPRICED, WORKER, at, charge, charge_of, execution};

pub(crate) async fn check(ledger: &Ledger) -> VerifyReport {
    verify(&ledger.pool, Range { from: at(-3600), to: at(2 * 3600) }).await.unwrap()
}

/// Five requests and their executions, one of them without a price.
pub(crate) async fn consistent() -> Ledger {
    let ledger = Ledger::start().await;
    ledger.append((1..=4).map(|number| charge(number, |_| ()))).await;
    ledger.append([charge(5, |data| data.version = UNPRICED)]).await;
    let executions = (1..=5)
        .map(|number| {
            execution(number, u128::from(number), |data| {
                data.version = if number == 5 { UNPRICED } else { data.version };
            })
        })
        .collect();
    ledger.try_append(&WORKER.to_string(), executions).await.unwrap();
    ledger
}

#[tokio::test]
async fn a_consistent_ledger_is_clean() {
    let ledger = consistent().await;
    let report = check(&ledger).await;
    assert!(report.is_clean() && report.recovered.is_empty(), "{report:?}");
    assert_eq!((report.counts.charges, report.counts.executions, report.counts.unpriced), (4, 5, 1));
}

#[tokio::test]
async fn a_missing_number_is_a_gap_and_a_number_used_twice_a_duplicate() {
    let ledger = consistent().await;
    ledger.append([charge(9, |_| ())]).await;
    let gaps = check(&ledger).await.gaps;
    assert_eq!((gaps.total, gaps.listed[0].first, gaps.listed[0].last), (1, 6, 8));
    // What came after the range's end may still be overtaken by what is missing.
    let early = Range { from: at(-3600), to: at(3600) };
    assert!(verify(&ledger.pool, early).await.unwrap().gaps.is_empty());
    ledger.append([charge_of(GATEWAY, 6, 1, |_| ())]).await;
    let duplicates = check(&ledger).await.duplicates;
    assert_eq!((duplicates.total, duplicates.listed[0].what.as_str()), (1, "duplicate_event"));
}

#[tokio::test]
async fn charges_are_compared_with_what_the_workers_counted() {
    let ledger = consistent().await;
    let worker = WORKER.to_string();
    ledger.try_append(&worker, vec![execution(6, 6, |_| ())]).await.unwrap();
    let report = check(&ledger).await;
    assert_eq!(report.differences.total, 1, "{report:?}");
    assert_eq!(report.differences.listed[0].subject, RequestId::from_u128(6).to_string());
    assert_eq!(report.differences.listed[0].what, "executed but not charged");
    ledger.append([charge(6, |data| data.generated_tokens = 5)]).await;
    let found = &check(&ledger).await.differences.listed[0];
    assert_eq!((found.left.as_str(), found.right.as_str()), ("40 32 5", "40 32 4"));
    // Charged, with tokens, and never executed; never dispatched, and charged nothing, is right.
    let ledger = consistent().await;
    let never = |data: &mut weir_schemas::records::ChargeData| {
        (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (0, 0, 0);
        data.finish_reason = FinishReason::Cancelled;
    };
    ledger.append([charge(6, never), charge(7, |_| ())]).await;
    let report = check(&ledger).await;
    assert_eq!(report.differences.total, 1, "{report:?}");
    assert_eq!(report.differences.listed[0].what, "charged but not executed");
}

#[tokio::test]
async fn attempts_are_one_request() {
    let ledger = consistent().await;
    // Cancelled in the prompt; two attempts that made tokens; a refused one; one that nobody took in the end.
    let nothing = |data: &mut weir_schemas::records::ExecutionData| {
        (data.cached_tokens, data.computed_tokens, data.generated_tokens) = (0, 0, 0);
    };
    let attempts = vec![
        execution(6, 6, |data| {
            (data.computed_tokens, data.generated_tokens) = (0, 0);
            data.outcome = ExecutionOutcome::Cancelled;
        }),
        execution(7, 7, |data| data.outcome = ExecutionOutcome::Error),
        execution(8, 7, |data| {
            (data.attempt, data.prompt_tokens, data.computed_tokens, data.generated_tokens) = (2, 44, 12, 6);
        }),
        execution(9, 8, |data| {
            nothing(data);
            data.outcome = ExecutionOutcome::Refused;
        }),
        execution(10, 8, |data| data.attempt = 2),
        execution(11, 9, |data| {
            (data.computed_tokens, data.generated_tokens) = (5, 0);
            data.outcome = ExecutionOutcome::Cancelled;
        }),
    ];
    ledger.try_append(&WORKER.to_string(), attempts).await.unwrap();
    let rejected = |data: &mut weir_schemas::records::ChargeData| {
        (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (0, 0, 0);
        data.finish_reason = FinishReason::Rejected;
    };
    ledger
        .append([
            charge(6, |data| (data.prompt_tokens, data.generated_tokens) = (32, 0)),
            charge(7, |data| data.generated_tokens = 10),
            charge(8, |_| ()),
            charge(9, rejected),
        ])
        .await;
    let report = check(&ledger).await;
    assert!(report.is_clean() && report.recovered.is_empty(), "{report:?}");
}

#[tokio::test]
async fn where_a_crash_closed_one_side_the_charge_stands_within_a_progress_interval() {
    let check_recovered = async |charged: (u64, u64), executed: u64, apart: bool| {
        let ledger = consistent().await;
        let (prompt, generated) = charged;
        let recovered = move |data: &mut weir_schemas::records::ChargeData| {
            (data.prompt_tokens, data.generated_tokens) = (prompt, generated);
            (data.cached_prompt_tokens, data.recovered) = (0, true);
            data.decode_us = generated * 10_000;
        };
        ledger.append([charge(6, recovered)]).await;
        // Fifty tokens a second.
        let complete = move |data: &mut weir_schemas::records::ExecutionData| {
            (data.generated_tokens, data.decode_us) = (executed, executed * 20_000);
        };
        ledger.try_append(&WORKER.to_string(), vec![execution(6, 6, complete)]).await.unwrap();
        let report = check(&ledger).await;
        assert_eq!(report.is_clean(), apart, "{charged:?} {executed}: {report:?}");
        assert_eq!(report.recovered.total, i64::from(apart));
        assert_eq!(report.counts.recovered_charges, 1);
    };
    // A second at fifty tokens a second.
    check_recovered((40, 100), 150, true).await;
    check_recovered((40, 100), 151, false).await;
    check_recovered((0, 0), 50, true).await;
    check_recovered((0, 0), 51, false).await;
    check_recovered((39, 100), 110, false).await;
    check_recovered((0, 30), 30, false).await;
}

#[tokio::test]
async fn what_arrived_from_a_lost_replica_is_what_is_charged() {
    let ledger = consistent().await;
    ledger
        .append([charge(6, |data| {
            (data.generated_tokens, data.cached_prompt_tokens) = (2, 0);
            data.finish_reason = FinishReason::ReplicaLost;
        })])
        .await;
    // The worker lived on, and had made two more when it noticed.
    ledger.try_append(&WORKER.to_string(), vec![execution(6, 6, |_| ())]).await.unwrap();
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.recovered.total, 1);
}

/// Ten tokens a second: a worker that is cut off has fifteen seconds to notice, one that counted less has none.
#[tokio::test]
async fn a_lost_replica_may_be_ahead_by_the_time_that_it_takes_to_notice() {
    let ledger = consistent().await;
    let arrived = |generated: u64| {
        move |data: &mut weir_schemas::records::ChargeData| {
            (data.generated_tokens, data.cached_prompt_tokens) = (generated, 0);
            (data.decode_us, data.finish_reason) = (generated * 100_000, FinishReason::ReplicaLost);
        }
    };
    let made = |generated: u64| {
        move |data: &mut weir_schemas::records::ExecutionData| {
            (data.generated_tokens, data.decode_us) = (generated, generated * 100_000);
        }
    };
    ledger.append([charge(6, arrived(20)), charge(7, arrived(20)), charge(8, arrived(200))]).await;
    let executions = vec![execution(6, 6, made(170)), execution(7, 7, made(172)), execution(8, 8, made(180))];
    ledger.try_append(&WORKER.to_string(), executions).await.unwrap();
    let report = check(&ledger).await;
    assert_eq!((report.recovered.total, report.differences.total), (1, 2), "{report:?}");
    assert_eq!(report.recovered.listed[0].subject, RequestId::from_u128(6).to_string());
}

#[tokio::test]
async fn a_recovered_request_that_waits_for_its_price_has_the_same_bound() {
    let ledger = consistent().await;
    let lost = |generated: u64| {
        move |data: &mut weir_schemas::records::ExecutionData| {
            (data.version, data.generated_tokens, data.recovered) = (UNPRICED, generated, true);
        }
    };
    // Ten tokens a second arrived.
    let arrived = |data: &mut weir_schemas::records::ChargeData| {
        (data.version, data.generated_tokens, data.decode_us) = (UNPRICED, 40, 4_000_000);
        data.finish_reason = FinishReason::ReplicaLost;
    };
    ledger.append([charge(6, arrived), charge(7, arrived)]).await;
    let executions = vec![execution(6, 6, lost(30)), execution(7, 7, lost(29))];
    ledger.try_append(&WORKER.to_string(), executions).await.unwrap();
    let report = check(&ledger).await;
    assert_eq!((report.recovered.total, report.differences.total), (1, 1), "{report:?}");
    assert_eq!(report.differences.listed[0].subject, RequestId::from_u128(7).to_string());
}
