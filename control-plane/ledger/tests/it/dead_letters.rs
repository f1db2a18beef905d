//! Records kept aside: listed until someone decides, replayed exactly once, or written off with a name and a reason.

use weir_ledger::dead_letters::{self, DecisionError};
use weir_schemas::ids::RequestId;
use weir_schemas::records::USAGE_TOPIC;
use weir_schemas::rpc::ledger::Record;

use crate::support::{GATEWAY, Ledger, WORKER, at, charge, charge_of, clock, execution};
use crate::verify::check;

const NEWER: &str = "weir.usage.v2";

/// Charges 1 and 3, and number 2 as given.
async fn with_second(record: Record) -> Ledger {
    let ledger = Ledger::start().await;
    let watermark = ledger.append([charge(1, |_| ()), record, charge(3, |_| ())]).await;
    assert_eq!(watermark, 3, "nothing is held up");
    let executions = [1, 3].map(|number| execution(number, u128::from(number), |_| ()));
    // The worker's numbers 1 and 3, and 2 for the request of number 2.
    let second = execution(2, 2, |_| ());
    ledger.try_append(&WORKER.to_string(), executions.into_iter().chain([second]).collect()).await.unwrap();
    ledger
}

/// A record that the database refused once.
async fn refused() -> Ledger {
    let ledger = Ledger::start().await;
    let refuse =
        "ALTER TABLE ledger_charges ADD CONSTRAINT refused CHECK (requested_model <> 'poison') NOT VALID";
    sqlx::query(refuse).execute(&ledger.pool).await.unwrap();
    let poison = charge(2, |data| data.requested_model = "poison".into());
    assert_eq!(ledger.append([charge(1, |_| ()), poison, charge(3, |_| ())]).await, 3);
    let executions = (1..=3).map(|number| execution(number, u128::from(number), |_| ())).collect();
    ledger.try_append(&WORKER.to_string(), executions).await.unwrap();
    ledger
}

async fn the_letter(ledger: &Ledger) -> i64 {
    let letters = dead_letters::list(&ledger.pool, false, 0, 10).await.unwrap();
    assert_eq!(letters.len(), 1, "{letters:?}");
    letters[0].dead_letter
}

#[tokio::test]
async fn what_cannot_be_read_waits_for_a_decision_and_is_written_off_once() {
    let malformed = Record { payload: b"{\"id\": \xff\0".to_vec(), ..charge(2, |_| ()) };
    let newer = Record { topic: NEWER.into(), ..charge(2, |_| ()) };
    let newer_type = {
        let payload =
            String::from_utf8(charge(2, |_| ()).payload).unwrap().replace("finished.v1", "finished.v2");
        Record { payload: payload.into_bytes(), ..charge(2, |_| ()) }
    };
    for (record, reason) in [(malformed, "malformed"), (newer, "unknown_topic"), (newer_type, "unknown_type")]
    {
        let ledger = with_second(record.clone()).await;
        ledger.append([record.clone(), record]).await;
        let letter = the_letter(&ledger).await;
        let report = check(&ledger).await;
        assert_eq!(report.dead_letters.listed[0].what, reason);
        assert_eq!(
            (report.dead_letters.total, report.differences.total),
            (1, 1),
            "and its execution has no charge"
        );
        let replayed = dead_letters::replay(&ledger.pool, &clock(), letter, "anna").await;
        assert!(
            matches!(&replayed, Err(DecisionError::StillDead { reason: still, .. }) if *still == reason),
            "{replayed:?}"
        );
        dead_letters::write_off(&ledger.pool, &clock(), letter, "anna", "a test of ours").await.unwrap();
        assert!(check(&ledger).await.dead_letters.is_empty());
        let again = dead_letters::write_off(&ledger.pool, &clock(), letter, "anna", "once more").await;
        assert!(matches!(again, Err(DecisionError::Decided { .. })), "{again:?}");
        let kept = &dead_letters::list(&ledger.pool, true, 0, 10).await.unwrap()[0];
        assert_eq!(kept.decided_by.as_deref(), Some("anna"));
        assert_eq!(kept.note.as_deref(), Some("a test of ours"));
        assert_eq!(
            (kept.sender.clone(), kept.sequence, kept.reason.as_str()),
            (GATEWAY.to_string(), 2, reason)
        );
    }
}

#[tokio::test]
async fn a_replayed_record_is_charged_once_as_if_it_came_now() {
    let ledger = refused().await;
    let letter = the_letter(&ledger).await;
    let poisoned = dead_letters::replay(&ledger.pool, &clock(), letter, "anna").await;
    assert!(matches!(poisoned, Err(DecisionError::Refused { .. })), "{poisoned:?}");
    assert!(!check(&ledger).await.is_clean());
    sqlx::query("ALTER TABLE ledger_charges DROP CONSTRAINT refused").execute(&ledger.pool).await.unwrap();
    // Twice at once, and again afterwards.
    let clock = clock();
    let (one, other) = tokio::join!(
        dead_letters::replay(&ledger.pool, &clock, letter, "anna"),
        dead_letters::replay(&ledger.pool, &clock, letter, "ben"),
    );
    assert_eq!([&one, &other].iter().filter(|outcome| outcome.is_ok()).count(), 1, "{one:?} {other:?}");
    let again = dead_letters::replay(&ledger.pool, &clock, letter, "anna").await;
    assert!(matches!(again, Err(DecisionError::Decided { .. })), "{again:?}");
    assert_eq!(ledger.count("ledger_charges").await, 3);
    assert_eq!(ledger.sum("requests", "ledger_usage_minutes").await, 3.into());
    assert_eq!(ledger.sum("finished", "ledger_goodput_minutes").await, 3.into());
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    // Resent it is known; under another number it is a duplicate, as ever.
    let poison = |sequence| charge_of(GATEWAY, sequence, 2, |data| data.requested_model = "poison".into());
    assert_eq!(ledger.append([poison(2), poison(4)]).await, 4);
    assert_eq!(ledger.count("ledger_charges").await, 3);
    let duplicate = the_letter(&ledger).await;
    let known = dead_letters::replay(&ledger.pool, &clock, duplicate, "anna").await;
    assert!(matches!(known, Err(DecisionError::KnownEvent { .. })), "{known:?}");
    assert_eq!(check(&ledger).await.duplicates.total, 1);
    dead_letters::write_off(&ledger.pool, &clock, duplicate, "anna", "sent twice").await.unwrap();
    assert!(check(&ledger).await.is_clean());
}

#[tokio::test]
async fn a_replayed_charge_that_is_removed_is_missed() {
    let ledger = refused().await;
    sqlx::query("ALTER TABLE ledger_charges DROP CONSTRAINT refused").execute(&ledger.pool).await.unwrap();
    dead_letters::replay(&ledger.pool, &clock(), the_letter(&ledger).await, "anna").await.unwrap();
    let request = RequestId::from_u128(2);
    let removal = format!(
        "DELETE FROM ledger_charges WHERE request_id = '{request}'; DELETE FROM ledger_executions WHERE request_id = '{request}'"
    );
    crate::tampering::by_hand(&ledger, &removal).await;
    let missed = check(&ledger).await.differences;
    let is_missed =
        |found: &weir_ledger::Difference| found.what == "a record was accepted but its row is gone";
    assert_eq!(missed.listed.iter().filter(|found| is_missed(found)).count(), 2, "{missed:?}");
}

#[tokio::test]
async fn another_record_under_a_used_number_can_be_replayed() {
    let ledger = with_second(charge(2, |_| ())).await;
    ledger.append([charge_of(GATEWAY, 3, 33, |_| ())]).await;
    ledger.try_append(&WORKER.to_string(), vec![execution(4, 33, |_| ())]).await.unwrap();
    let letter = the_letter(&ledger).await;
    assert_eq!(check(&ledger).await.duplicates.listed[0].what, "sequence_conflict");
    dead_letters::replay(&ledger.pool, &clock(), letter, "anna").await.unwrap();
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.counts.charges, 4);
}

#[tokio::test]
async fn what_is_asked_of_no_letter_or_changes_one_is_refused() {
    let ledger = with_second(Record { topic: NEWER.into(), ..charge(2, |_| ()) }).await;
    let missing = dead_letters::replay(&ledger.pool, &clock(), 99, "anna").await;
    assert!(matches!(missing, Err(DecisionError::NotFound { number: 99 })), "{missing:?}");
    dead_letters::write_off(&ledger.pool, &clock(), the_letter(&ledger).await, "anna", "").await.unwrap();
    for sql in [
        "UPDATE ledger_dead_letters SET reason = 'malformed'",
        "UPDATE ledger_dead_letter_decisions SET decided_by = 'ben'",
        "DELETE FROM ledger_dead_letter_decisions",
        "TRUNCATE ledger_dead_letter_decisions",
    ] {
        let refused = sqlx::query(sql).execute(&ledger.pool).await.unwrap_err();
        assert!(refused.to_string().contains("never changed"), "{sql}: {refused}");
    }
}

#[tokio::test]
async fn fields_of_tomorrow_are_accepted() {
    let extended = {
        let payload = String::from_utf8(charge(2, |_| ()).payload).unwrap();
        let payload = payload.replacen("\"data\":{", "\"data\":{\"of_tomorrow\":[1,{\"a\":null}],", 1);
        assert!(payload.contains("of_tomorrow"));
        Record { payload: payload.into_bytes(), topic: USAGE_TOPIC.into(), ..charge(2, |_| ()) }
    };
    let ledger = with_second(extended).await;
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    let kept: String = sqlx::query_scalar(
        "SELECT record -> 'data' ->> 'of_tomorrow' FROM ledger_charges WHERE sequence = 2",
    )
    .fetch_one(&ledger.pool)
    .await
    .unwrap();
    assert_eq!(kept, "[1,{\"a\":null}]");
    assert_eq!(
        ledger.sum("extract(epoch FROM received_at)", "ledger_charges").await,
        (3 * at(0).timestamp()).into()
    );
}
