//! Records through a real broker: charged once, whoever sends them, and whenever the ledger dies.

use weir_schemas::ids::GatewayId;

use crate::broker::{Broker, charge_in, charged};
use crate::private_postgres::PrivatePostgres;
use crate::support::{Ledger, WORKER, charge_of, execution, start_with, within_a_minute};

fn gateways() -> [GatewayId; 3] {
    [11, 12, 13].map(GatewayId::from_u128)
}

#[tokio::test]
async fn records_of_several_senders_are_charged_once_and_every_watermark_moves() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    for _ in 0..2 {
        for sequence in 1..=40 {
            for gateway in gateways() {
                broker.send(&gateway.to_string(), [charge_in(gateway, sequence)]).await;
            }
            broker.send(&WORKER.to_string(), [execution(sequence, sequence.into(), |_| ())]).await;
        }
    }
    charged(&ledger, 120).await;
    for gateway in gateways() {
        within_a_minute(async || ledger.standing(&gateway.to_string()).await == (40, 1)).await;
    }
    within_a_minute(async || ledger.standing(&WORKER.to_string()).await == (40, 1)).await;
    // The other way in is open too, and knows what came by this one.
    let gateway = gateways()[0];
    let again = vec![charge_in(gateway, 40), charge_in(gateway, 41)];
    assert_eq!(ledger.try_append(&gateway.to_string(), again).await.unwrap(), 41);
    charged(&ledger, 121).await;
    assert_eq!(ledger.count("ledger_sequences").await, 161);
    assert_eq!(ledger.count("ledger_executions").await, 40);
    assert_eq!(ledger.count("ledger_dead_letters").await, 0);
    assert_eq!(ledger.sum("requests", "ledger_usage_minutes").await, 121.into());
}

/// Runs a ledger on a runtime of its own until `seen`, and then ends it as a kill does: nothing is finished.
async fn killed_after(url: String, broker: &Broker, seen: impl AsyncFn() -> bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let kafka = broker.node.raw();
    let ledger: Ledger = runtime.spawn(async move { start_with(&url, kafka).await }).await.unwrap();
    within_a_minute(seen).await;
    runtime.shutdown_background();
    drop(ledger);
}

#[tokio::test]
async fn a_ledger_killed_between_its_commit_and_the_mark_in_kafka_charges_nothing_twice() {
    let broker = Broker::start().await;
    let gateway = gateways()[0];
    let watcher = Ledger::start().await;
    broker.send(&gateway.to_string(), (1..=50).map(|sequence| charge_in(gateway, sequence))).await;
    broker.send_raw("weir.usage.v1", "key", None, Some(b"of nobody")).await;
    killed_after(watcher.url.clone(), &broker, async || {
        watcher.count("ledger_charges").await == 50 && watcher.count("ledger_dead_letters").await == 1
    })
    .await;
    let taken: i64 = sqlx::query_scalar("SELECT sum(next_offset)::bigint FROM ledger_offsets")
        .fetch_one(&watcher.pool)
        .await
        .unwrap();
    assert_eq!(taken, 51);
    assert!(broker.marked().await < taken, "the mark is behind");

    let second = start_with(&watcher.url, broker.node.raw()).await;
    broker.send(&gateway.to_string(), (40..=60).map(|sequence| charge_in(gateway, sequence))).await;
    charged(&watcher, 60).await;
    within_a_minute(async || watcher.standing(&gateway.to_string()).await == (60, 1)).await;
    assert_eq!(watcher.count("ledger_dead_letters").await, 1);
    assert!(
        second.metrics().contains("weir_ledger_resent_records_total 11"),
        "what was sent again, and no more"
    );
}

#[tokio::test]
async fn a_ledger_killed_in_the_middle_of_a_transaction_charges_it_later() {
    use sqlx::Connection;
    let broker = Broker::start().await;
    let gateway = gateways()[0];
    let watcher = Ledger::start().await;
    let mut holder = sqlx::PgConnection::connect(&watcher.url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    sqlx::query("LOCK TABLE ledger_goodput_minutes IN EXCLUSIVE MODE").execute(&mut *held).await.unwrap();
    broker.send(&gateway.to_string(), (1..=50).map(|sequence| charge_in(gateway, sequence))).await;
    killed_after(watcher.url.clone(), &broker, async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&watcher.pool).await.unwrap() > 0
    })
    .await;
    held.rollback().await.unwrap();
    let _second = start_with(&watcher.url, broker.node.raw()).await;
    charged(&watcher, 50).await;
    within_a_minute(async || watcher.standing(&gateway.to_string()).await == (50, 1)).await;
}

#[tokio::test]
async fn while_postgres_is_away_the_consumer_stays_in_its_group_and_says_why_it_is_not_ready() {
    let broker = Broker::start().await;
    let postgres = tokio::task::spawn_blocking(PrivatePostgres::start).await.unwrap();
    let ledger = start_with(&postgres.fresh_database(), broker.node.raw()).await;
    ledger.ready().await;
    let gateway = gateways()[0];
    let send = async |sequences: std::ops::RangeInclusive<u64>| {
        broker.send(&gateway.to_string(), sequences.map(|sequence| charge_in(gateway, sequence))).await;
    };
    send(1..=10).await;
    within_a_minute(async || ledger.count("ledger_unpriced").await == 10).await;
    postgres.pause();
    send(11..=30).await;
    let ready = ledger.running.ready_probe();
    within_a_minute(async || ready() == Err("the ledger's database does not answer".to_owned())).await;
    // Longer than a member that does not poll or send heartbeats would be kept.
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    assert!(ready().is_err());
    postgres.resume();
    within_a_minute(async || ready().is_ok()).await;
    send(31..=40).await;
    within_a_minute(async || ledger.count("ledger_unpriced").await == 40).await;
    within_a_minute(async || ledger.standing(&gateway.to_string()).await == (40, 1)).await;
    let first = charge_of(gateway, 1, 1, |_| ());
    broker.send(&gateway.to_string(), [first]).await;
    within_a_minute(async || ledger.count("ledger_dead_letters").await == 1).await;
}
