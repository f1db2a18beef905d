//! Whatever lies in a record topic: the right outcome each, and nothing stuck behind it.

use chrono::TimeDelta;
use rdkafka::Message;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use weir_schemas::ids::{GatewayId, TenantId};
use weir_schemas::kafka::{Origin, Topic};
use weir_schemas::records::USAGE_TOPIC;
use weir_schemas::rpc::ledger::Record;

use crate::broker::{Broker, charge_in, charged};
use crate::support::{Ledger, at, charge_of, within_a_minute};

const GATEWAY: GatewayId = GatewayId::from_u128(11);

/// Reason and detail of each dead letter, in the order of its number.
async fn letters(ledger: &Ledger) -> Vec<(String, i64, String)> {
    sqlx::query_as(
        "SELECT reason, sequence, detail FROM ledger_dead_letters ORDER BY reason, sequence, detail",
    )
    .fetch_all(&ledger.pool)
    .await
    .unwrap()
}

fn altered(sequence: u64, from: &str, to: &str) -> Record {
    let mut record = charge_of(GATEWAY, sequence, sequence.into(), |_| ());
    let text = String::from_utf8(record.payload).unwrap();
    assert!(text.contains(from), "{text}");
    record.payload = text.replace(from, to).into_bytes();
    record
}

#[tokio::test]
async fn records_that_come_thrice_in_a_wrong_order_or_a_month_late_are_charged_once() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    let gateway = GATEWAY.to_string();
    let late = charge_of(GATEWAY, 1, 1, |data| {
        data.received_at = at(0) - TimeDelta::days(31);
        data.finished_at = data.received_at + TimeDelta::seconds(1);
    });
    ledger.price(crate::support::VERSION, at(0) - TimeDelta::days(60), "0.5", "0.125", "1.5").await;
    for record in [charge_in(GATEWAY, 4), charge_in(GATEWAY, 3), charge_in(GATEWAY, 3)] {
        broker.send(&gateway, [record]).await;
    }
    charged(&ledger, 2).await;
    assert_eq!(ledger.standing(&gateway).await, (0, 1), "what is not there is not acknowledged");
    broker.send(&gateway, [charge_in(GATEWAY, 2), charge_in(GATEWAY, 3), late]).await;
    charged(&ledger, 4).await;
    within_a_minute(async || ledger.standing(&gateway).await == (4, 1)).await;
    assert_eq!(ledger.count("ledger_dead_letters").await, 0);
    let minute: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT min(bucket_start) FROM ledger_usage_minutes")
            .fetch_one(&ledger.pool)
            .await
            .unwrap();
    assert!(minute < at(0) - TimeDelta::days(30), "it counts when it was received");
}

#[tokio::test]
async fn malformed_newer_and_unknown_records_pass_the_watermark_each_with_its_outcome() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    let gateway = GATEWAY.to_string();
    let records = [
        altered(1, "\"n\":1", "\"n\":1,\"a_field_of_tomorrow\":{\"x\":[1]}"),
        altered(2, "finished.v1", "finished.v2"),
        altered(3, "{", "["),
        altered(4, "\"sequence\":4", "\"sequence\":5"),
        Record { payload: vec![0xff, 0, 0x7b], ..charge_in(GATEWAY, 5) },
        charge_in(GATEWAY, 6),
    ];
    broker.send(&gateway, records).await;
    let tombstone = Origin::to_headers(&gateway, 7);
    broker.send_raw(USAGE_TOPIC, "key", Some(tombstone), None).await;
    within_a_minute(async || ledger.standing(&gateway).await == (7, 1)).await;
    charged(&ledger, 2).await;
    let letters: Vec<(String, i64)> =
        letters(&ledger).await.into_iter().map(|(reason, sequence, _)| (reason, sequence)).collect();
    let expected =
        [("malformed", 3), ("malformed", 4), ("malformed", 5), ("malformed", 7), ("unknown_type", 2)];
    assert_eq!(letters, expected.map(|(reason, sequence)| (reason.to_owned(), sequence)));
    let kept: Vec<u8> = sqlx::query_scalar("SELECT payload FROM ledger_dead_letters WHERE sequence = 5")
        .fetch_one(&ledger.pool)
        .await
        .unwrap();
    assert_eq!(kept, [0xff, 0, 0x7b], "the bytes are as they came");
}

#[tokio::test]
async fn messages_of_strangers_are_kept_and_hold_nobody_up() {
    let broker = Broker::start().await;
    let ledger = broker.ledger().await;
    let gateway = GATEWAY.to_string();
    let header = |headers: OwnedHeaders, key, value: &str| headers.insert(Header { key, value: Some(value) });
    let tenant = TenantId::from_u128(1).to_string();
    let odd = [
        None,
        Some(OwnedHeaders::new()),
        Some(header(OwnedHeaders::new(), "weir-sender", &gateway)),
        Some(Origin::to_headers(&tenant, 1)),
        Some(Origin::to_headers(&gateway, u64::MAX)),
        Some(header(Origin::to_headers(&gateway, 1), "weir-sequence", "2")),
        Some(header(header(OwnedHeaders::new(), "weir-sender", &gateway), "weir-sequence", "0")),
    ];
    // All with one key, so that they lie in one partition, before a record of a gateway.
    for headers in odd.clone() {
        broker.send_raw(USAGE_TOPIC, "k", headers, Some(b"{\"x\":1}")).await;
    }
    let record = Record { key: "k".into(), ..charge_in(GATEWAY, 1) };
    broker.send(&gateway, [record]).await;
    charged(&ledger, 1).await;
    within_a_minute(async || ledger.standing(&gateway).await == (1, 1)).await;
    let letters = letters(&ledger).await;
    assert_eq!(letters.len(), odd.len());
    for ((reason, offset, detail), expected) in letters.iter().zip(0..) {
        assert_eq!((reason.as_str(), *offset), ("no_sender", expected));
        assert!(!detail.is_empty());
    }
    assert_eq!(ledger.count("ledger_senders").await, 1, "a stranger is no sender");
    let place: String = sqlx::query_scalar("SELECT DISTINCT sender FROM ledger_dead_letters")
        .fetch_one(&ledger.pool)
        .await
        .unwrap();
    assert!(place.starts_with("kafka:weir.usage.v1/"), "{place}");

    // A copy of each is on its topic.
    let copies = broker
        .read(Topic::DeadLetters.name(), odd.len(), |message| {
            let headers = message.headers().unwrap();
            let header = |name: &str| {
                let header = headers.iter().find(|header| header.key == name).unwrap();
                String::from_utf8(header.value.unwrap().to_vec()).unwrap()
            };
            (
                header("weir-reason"),
                header("weir-topic"),
                header("weir-dead-letter"),
                message.payload().unwrap().to_vec(),
            )
        })
        .await;
    for (copy, number) in copies.into_iter().zip(1..) {
        let expected =
            ("no_sender".to_owned(), USAGE_TOPIC.to_owned(), format!("{number}"), b"{\"x\":1}".to_vec());
        assert_eq!(copy, expected);
    }
    within_a_minute(async || ledger.count("ledger_dead_letter_outbox").await == 0).await;
}
