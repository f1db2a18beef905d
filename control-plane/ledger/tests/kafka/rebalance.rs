//! Several ledgers share the work: partitions move between them in the middle of everything.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::Connection;
use weir_schemas::ids::{GatewayId, TenantId};
use weir_schemas::records::{DAMAGED_TOPIC, ExecutionData};
use weir_schemas::rpc::ledger::Record;

use crate::broker::{Broker, charge_in, charged};
use crate::support::{Ledger, WORKER, execution, start_with, within_a_minute};

const GATEWAYS: [GatewayId; 2] = [GatewayId::from_u128(11), GatewayId::from_u128(12)];
/// Its disk lost every record.
const UNLUCKY: GatewayId = GatewayId::from_u128(13);

async fn send(broker: &Broker, sequences: std::ops::RangeInclusive<u64>) {
    for sequence in sequences {
        for gateway in GATEWAYS {
            broker.send(&gateway.to_string(), [charge_in(gateway, sequence)]).await;
        }
        broker.send(&WORKER.to_string(), [execution(sequence, sequence.into(), in_some_tenant)]).await;
        broker.send(&UNLUCKY.to_string(), [damaged(sequence)]).await;
    }
}

/// Keys decide on partitions, and the group deals these out as it likes: each topic gets records in all of its own.
fn in_some_tenant(data: &mut ExecutionData) {
    data.tenant = TenantId::from_u128(100 + u128::from(data.sequence % 20));
}

fn damaged(sequence: u64) -> Record {
    let key = TenantId::from_u128(100 + u128::from(sequence % 20)).to_string();
    Record { sequence, topic: DAMAGED_TOPIC.into(), key, payload: b"{}".to_vec() }
}

/// Sends until told to stop; returns the last sequence number.
async fn send_until(broker: &Broker, stop: &AtomicBool) -> u64 {
    for sequence in 1.. {
        send(broker, sequence..=sequence).await;
        if stop.load(Ordering::Relaxed) {
            return sequence;
        }
    }
    0
}

/// Records that this ledger took.
fn taken(ledger: &Ledger) -> u64 {
    let metrics = ledger.metrics();
    let line = metrics.lines().find(|line| line.starts_with("weir_ledger_records_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn ledgers_come_and_go_in_the_middle_of_the_stream_and_each_request_is_charged_once() {
    let broker = Broker::start().await;
    let one = broker.ledger().await;
    let stop = AtomicBool::new(false);
    let ledgers = async {
        within_a_minute(async || one.count("ledger_charges").await > 50).await;
        let two = start_with(&one.url, broker.node.raw()).await;
        within_a_minute(async || taken(&two) > 50).await;
        let three = start_with(&one.url, broker.node.raw()).await;
        within_a_minute(async || taken(&three) > 0).await;
        two.cancel.cancel();
        two.running.stopped().await;
        let left = taken(&three);
        within_a_minute(async || taken(&three) > left + 20).await;
        stop.store(true, Ordering::Relaxed);
        three
    };
    let (all, three) = tokio::join!(send_until(&broker, &stop), ledgers);
    let senders = [GATEWAYS[0].to_string(), GATEWAYS[1].to_string(), WORKER.to_string(), UNLUCKY.to_string()];
    for sender in senders {
        within_a_minute(async || one.standing(&sender).await == (all, 1)).await;
    }
    let all = i64::try_from(all).unwrap();
    charged(&one, 2 * all).await;
    assert_eq!(one.count("ledger_executions").await, all);
    assert_eq!(one.count("ledger_dead_letters").await, all);
    assert!(taken(&one) > 0 && taken(&three) > 0);
}

#[tokio::test]
async fn a_batch_whose_partitions_another_took_over_is_given_up_whole() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    send(&broker, 1..=10).await;
    charged(&ledger, 20).await;
    // Another consumer, in the middle of its own transaction.
    let mut other = sqlx::PgConnection::connect(&ledger.url).await.unwrap();
    let mut held = other.begin().await.unwrap();
    sqlx::query("SELECT FROM ledger_offsets FOR UPDATE").execute(&mut *held).await.unwrap();
    send(&broker, 11..=20).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    within_a_minute(async || {
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&ledger.pool).await.unwrap() > 0
    })
    .await;
    // It took the first of each partition's records (say), and charged them.
    for gateway in GATEWAYS {
        let records = (11..=20).map(|sequence| charge_in(gateway, sequence)).collect();
        assert_eq!(ledger.try_append(&gateway.to_string(), records).await.unwrap(), 20);
    }
    sqlx::query("UPDATE ledger_offsets SET next_offset = next_offset + 1 WHERE next_offset > 0")
        .execute(&mut *held)
        .await
        .unwrap();
    held.commit().await.unwrap();
    within_a_minute(async || ledger.metrics().contains("weir_ledger_fenced_batches_total 1")).await;
    send(&broker, 21..=30).await;
    charged(&ledger, 60).await;
    for gateway in GATEWAYS {
        within_a_minute(async || ledger.standing(&gateway.to_string()).await == (30, 1)).await;
    }
}
