//! Verification finds nothing where nothing is wrong, and each kind of wrong where it is.

use weir_ledger::{Range, VerifyReport, verify};
use weir_schemas::ids::RequestId;
use weir_schemas::records::ExecutionOutcome;

use crate::support::{Ledger, UNPRICED, WORKER, at, charge, charge_of, execution};

async fn check(ledger: &Ledger) -> VerifyReport {
    verify(&ledger.pool, Range { from: at(-3600), to: at(3600) }).await.unwrap()
}

/// Five requests and their executions, one of them without a price.
async fn consistent() -> Ledger {
    let ledger = Ledger::start().await;
    ledger.append((1..=4).map(|number| charge(number, |_| ()))).await;
    ledger.append([charge(5, |data| data.version = UNPRICED)]).await;
    let executions = (1..=5).map(|number| execution(number, u128::from(number), |_| ())).collect();
    ledger.try_append(&WORKER.to_string(), executions).await.unwrap();
    ledger
}

/// As someone with the database's password and bad intent.
async fn by_hand(ledger: &Ledger, sql: &str) {
    let script = format!(
        "ALTER TABLE ledger_charges DISABLE TRIGGER USER; {sql}; ALTER TABLE ledger_charges ENABLE TRIGGER USER"
    );
    sqlx::raw_sql(&script).execute(&ledger.pool).await.unwrap();
}

#[tokio::test]
async fn a_consistent_ledger_is_clean() {
    let ledger = consistent().await;
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.charges, report.executions, report.unpriced), (4, 5, 1));
}

#[tokio::test]
async fn a_charge_removed_doubled_or_altered_by_hand_is_found() {
    let first = RequestId::from_u128(1).to_string();
    let second = RequestId::from_u128(2).to_string();
    let attacks = [
        format!("DELETE FROM ledger_charges WHERE request_id = '{first}'"),
        format!(
            "INSERT INTO ledger_charges SELECT (c).* FROM (SELECT json_populate_record(c, '{{\"request_id\": \"req_other\"}}') AS c
             FROM ledger_charges c WHERE request_id = '{first}') d"
        ),
        format!("UPDATE ledger_charges SET generated_tokens = 3 WHERE request_id = '{second}'"),
        format!("UPDATE ledger_charges SET amount = 0, prompt_amount = 0, cached_prompt_amount = 0, generated_amount = 0 WHERE request_id = '{second}'"),
        format!("UPDATE ledger_charges SET generated_per_million = 1, generated_amount = 0.000004, amount = 0.000012 WHERE request_id = '{second}'"),
        "UPDATE ledger_usage_minutes SET amount = amount + 1".to_owned(),
        "UPDATE ledger_usage_minutes SET requests = requests - 1".to_owned(),
    ];
    for attack in attacks {
        let ledger = consistent().await;
        by_hand(&ledger, &attack).await;
        let report = check(&ledger).await;
        assert!(!report.is_clean(), "{attack}: {report:?}");
    }
}

#[tokio::test]
async fn a_missing_number_is_a_gap_and_a_number_used_twice_a_duplicate() {
    let ledger = consistent().await;
    ledger.append([charge(9, |_| ())]).await;
    let gaps = check(&ledger).await.gaps;
    assert_eq!((gaps.len(), gaps[0].first, gaps[0].last), (1, 6, 8));
    ledger.append([charge_of(crate::support::GATEWAY, 6, 1, |_| ())]).await;
    let duplicates = check(&ledger).await.duplicates;
    assert_eq!((duplicates.len(), duplicates[0].what.as_str()), (1, "duplicate_event"));
}

#[tokio::test]
async fn charges_are_compared_with_what_the_workers_counted() {
    let ledger = consistent().await;
    let worker = WORKER.to_string();
    // Not charged at all; charged with other tokens; cancelled in the prompt; two attempts; a refused attempt.
    let uncharged = vec![execution(6, 6, |_| ())];
    ledger.try_append(&worker, uncharged).await.unwrap();
    let report = check(&ledger).await;
    assert_eq!(report.differences.len(), 1, "{report:?}");
    assert_eq!(report.differences[0].subject, RequestId::from_u128(6).to_string());
    assert_eq!(report.differences[0].what, "executed but not charged");
    ledger.append([charge(6, |data| data.generated_tokens = 5)]).await;
    let report = check(&ledger).await;
    assert_eq!(
        (report.differences[0].left.as_str(), report.differences[0].right.as_str()),
        ("40 32 5", "40 32 4")
    );

    let ledger = consistent().await;
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
            (data.cached_tokens, data.computed_tokens, data.generated_tokens) = (0, 0, 0);
            data.outcome = ExecutionOutcome::Refused;
        }),
        execution(10, 8, |data| data.attempt = 2),
    ];
    ledger.try_append(&worker, attempts).await.unwrap();
    let cancelled = charge(6, |data| (data.prompt_tokens, data.generated_tokens) = (32, 0));
    let continued = charge(7, |data| data.generated_tokens = 10);
    ledger.append([cancelled, continued, charge(8, |_| ())]).await;
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn where_a_crash_closed_one_side_the_difference_is_listed_apart() {
    let ledger = consistent().await;
    ledger.append([charge(6, |data| (data.generated_tokens, data.recovered) = (2, true))]).await;
    ledger.try_append(&WORKER.to_string(), vec![execution(6, 6, |_| ())]).await.unwrap();
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.recovered.len(), 1);
}
