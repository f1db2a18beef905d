//! Postgres failing at the worst moments.

use sqlx::Connection;

use crate::private_postgres::PrivatePostgres;
use crate::support::{GATEWAY, Ledger, at, charge, start_on, within_a_minute};

/// Whether the ledger's batch waits for a lock that the test holds.
async fn batch_waits(ledger: &Ledger) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    sqlx::query_scalar::<_, i64>(sql).fetch_one(&ledger.pool).await.unwrap() > 0
}

#[tokio::test]
async fn a_batch_whose_connection_dies_in_the_middle_leaves_nothing_and_is_charged_when_resent() {
    let ledger = Ledger::start().await;
    let records = || vec![charge(1, |_| ()), charge(2, |_| ()), charge(3, |_| ())];
    // Hold the roll-up's table, so that the batch stops after its sequences and in the middle of its charges.
    let mut holder = sqlx::PgConnection::connect(&ledger.url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    sqlx::query("LOCK TABLE ledger_goodput_minutes IN EXCLUSIVE MODE").execute(&mut *held).await.unwrap();
    let gateway = GATEWAY.to_string();
    let append = ledger.try_append(&gateway, records());
    let kill = async {
        within_a_minute(async || batch_waits(&ledger).await).await;
        sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            .execute(&ledger.pool)
            .await
            .unwrap();
    };
    let (outcome, ()) = tokio::join!(append, kill);
    assert_eq!(outcome.unwrap_err().code(), tonic::Code::Unavailable);
    for table in [
        "ledger_charges",
        "ledger_sequences",
        "ledger_senders",
        "ledger_usage_minutes",
        "ledger_goodput_minutes",
    ] {
        assert_eq!(ledger.count(table).await, 0, "{table}");
    }
    held.rollback().await.unwrap();
    assert_eq!(ledger.append(records()).await, 3);
    assert_eq!(ledger.count("ledger_charges").await, 3);
    assert!(ledger.running.ready_probe()().is_ok());
}

#[tokio::test]
async fn a_record_that_postgres_refuses_does_not_hold_up_the_others() {
    let ledger = Ledger::start().await;
    sqlx::query("ALTER TABLE ledger_charges ADD CONSTRAINT refused CHECK (requested_model <> 'poison')")
        .execute(&ledger.pool)
        .await
        .unwrap();
    let poison = |data: &mut weir_schemas::records::ChargeData| data.requested_model = "poison".into();
    assert_eq!(ledger.append([charge(1, |_| ()), charge(2, poison), charge(3, |_| ())]).await, 3);
    assert_eq!(ledger.count("ledger_charges").await, 2);
    let letter: (i64, String, String) =
        sqlx::query_as("SELECT sequence, reason, detail FROM ledger_dead_letters")
            .fetch_one(&ledger.pool)
            .await
            .unwrap();
    assert_eq!(letter, (2, "refused".to_owned(), "Postgres: SQLSTATE 23514".to_owned()));
}

#[tokio::test]
async fn labels_that_postgres_cannot_hold_are_charged_all_the_same() {
    let ledger = Ledger::start().await;
    let odd = |data: &mut weir_schemas::records::ChargeData| {
        data.project = Some(format!("nul \0 {}", "long".repeat(2_000)));
        data.requested_model = "m".repeat(10_000);
        data.client_request_id = Some("\0".into());
    };
    assert_eq!(ledger.append([charge(1, odd)]).await, 1);
    assert_eq!(ledger.count("ledger_charges").await, 1);
    assert_eq!(ledger.count("ledger_dead_letters").await, 0);
    let range = weir_ledger::Range { from: at(-100), to: at(100) };
    assert_eq!(weir_ledger::verify(&ledger.pool, range).await.unwrap().counts.charges, 1);
}

#[tokio::test]
async fn while_postgres_is_away_senders_are_told_and_afterwards_it_goes_on_by_itself() {
    let postgres = tokio::task::spawn_blocking(PrivatePostgres::start).await.unwrap();
    let url = postgres.fresh_database();
    postgres.pause();
    let ledger = start_on(&url).await;
    let gateway = GATEWAY.to_string();
    let early = ledger.try_append(&gateway, vec![charge(1, |_| ())]).await.unwrap_err();
    assert_eq!(early.code(), tonic::Code::Unavailable);
    assert!(ledger.running.ready_probe()().is_err());
    postgres.resume();
    ledger.ready().await;
    assert_eq!(ledger.append([charge(1, |_| ())]).await, 1);

    postgres.pause();
    let away = ledger.try_append(&gateway, vec![charge(2, |_| ())]).await.unwrap_err();
    assert_eq!(away.code(), tonic::Code::Unavailable);
    assert!(ledger.running.ready_probe()().is_err());
    assert!(ledger.metrics().contains("weir_ledger_postgres_up 0"));
    postgres.resume();
    within_a_minute(async || ledger.try_append(&gateway, vec![charge(2, |_| ())]).await.is_ok()).await;
    assert!(ledger.running.ready_probe()().is_ok());
    assert_eq!(ledger.count("ledger_unpriced").await, 2);
}

#[tokio::test]
async fn a_stopped_ledger_ends_its_connections() {
    let ledger = Ledger::start().await;
    ledger.append([charge(1, |_| ())]).await;
    let (running, cancel) = (ledger.running, ledger.cancel);
    cancel.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(60), running.stopped()).await.unwrap();
    // Only this test's own pool is left. A backend ends a moment after its client.
    within_a_minute(async || {
        let left: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .fetch_one(&ledger.pool)
        .await
        .unwrap();
        left <= 3
    })
    .await;
}
