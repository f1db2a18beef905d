//! Topics that were made anew and brokers that lost everything: read from the start, senders told, nothing twice.

use weir_schemas::ids::GatewayId;
use weir_schemas::kafka::{Topic, ensure_topics};

use crate::broker::{Broker, charge_in, charged};
use crate::support::{Ledger, start_with, within_a_minute};

const GATEWAY: GatewayId = GatewayId::from_u128(11);

async fn send(broker: &Broker, sequences: std::ops::RangeInclusive<u64>) {
    broker.send(&GATEWAY.to_string(), sequences.map(|sequence| charge_in(GATEWAY, sequence))).await;
}

/// Waits until the generation is another than 1; what it grows to besides is not promised.
async fn told(ledger: &Ledger) {
    within_a_minute(async || ledger.standing(&GATEWAY.to_string()).await.1 > 1).await;
}

#[tokio::test]
async fn topics_deleted_and_made_anew_under_a_running_ledger_are_read_from_their_start() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    send(&broker, 1..=60).await;
    charged(&ledger, 60).await;
    // Gone without ever having been read: the sender keeps them, and is told.
    broker.delete_topics().await;
    ensure_topics(&broker.kafka, &Topic::RECORDS).await.unwrap();
    send(&broker, 50..=70).await;
    told(&ledger).await;
    send(&broker, 61..=80).await;
    charged(&ledger, 80).await;
    within_a_minute(async || ledger.standing(&GATEWAY.to_string()).await.0 == 80).await;
}

#[tokio::test]
async fn a_topic_made_anew_that_outgrew_its_old_positions_is_read_from_its_start_too() {
    let broker = Broker::start().await;
    let first = broker.ledger().await;
    send(&broker, 1..=40).await;
    charged(&first, 40).await;
    first.cancel.cancel();
    first.running.stopped().await;
    broker.delete_topics().await;
    ensure_topics(&broker.kafka, &Topic::RECORDS).await.unwrap();
    // Each partition holds more now than it did, and what is new lies first.
    send(&broker, 41..=200).await;
    let ledger = start_with(&first.url, broker.node.raw()).await;
    within_a_minute(async || ledger.count("ledger_charges").await >= 200).await;
    charged(&ledger, 200).await;
    told(&ledger).await;
    within_a_minute(async || ledger.standing(&GATEWAY.to_string()).await.0 == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lost_its_disk_is_read_from_the_start_and_nothing_is_charged_twice() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    send(&broker, 1..=60).await;
    charged(&ledger, 60).await;
    broker.node.kill();
    let ready = ledger.running.ready_probe();
    within_a_minute(async || ready().is_err()).await;
    broker.node.wipe();
    let node = &broker.node;
    tokio::task::block_in_place(|| node.resume());
    // The ledger makes the topics itself.
    within_a_minute(async || ready().is_ok()).await;
    send(&broker, 1..=90).await;
    told(&ledger).await;
    charged(&ledger, 90).await;
    within_a_minute(async || ledger.standing(&GATEWAY.to_string()).await.0 == 90).await;
}

/// A partition whose broker came back has a higher leader epoch than one made anew; a client that remembered it would
/// never read the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_anew_after_the_broker_came_back_is_read_by_the_same_ledger() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    send(&broker, 1..=20).await;
    charged(&ledger, 20).await;
    let node = &broker.node;
    for _ in 0..2 {
        node.kill();
        tokio::task::block_in_place(|| node.resume());
    }
    send(&broker, 21..=40).await;
    charged(&ledger, 40).await;
    broker.delete_topics().await;
    ensure_topics(&broker.kafka, &Topic::RECORDS).await.unwrap();
    send(&broker, 41..=60).await;
    charged(&ledger, 60).await;
    within_a_minute(async || ledger.standing(&GATEWAY.to_string()).await.0 == 60).await;
}
