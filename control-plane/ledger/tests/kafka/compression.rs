//! A topic that an operator made keeps what its producers compressed with: the ledger reads it all.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{FutureProducer, FutureRecord};
use weir_schemas::kafka::{Kafka, Origin, Topic};
use weir_schemas::rpc::ledger::Record;

use crate::broker::{charge_in, charged};
use crate::private_kafka::PrivateKafka;
use crate::support::{GATEWAY, Ledger};

/// Named in the order of their numbers in a batch's attributes.
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const RECORDS_OF_EACH: u64 = 10;

#[tokio::test]
async fn batches_of_every_compression_are_charged() {
    let node = tokio::task::spawn_blocking(PrivateKafka::start).await.unwrap();
    let kafka = node.kafka();
    let admin: AdminClient<DefaultClientContext> = kafka.client_config().create().unwrap();
    let usage = NewTopic::new(Topic::Usage.name(), 1, TopicReplication::Fixed(1));
    admin.create_topics(&[usage], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    for (first, codec) in (1..).step_by(10).zip(CODECS) {
        let records = (first..first + RECORDS_OF_EACH).map(|sequence| charge_in(GATEWAY, sequence));
        send(&kafka, codec, records.collect()).await;
    }
    assert_eq!(codecs(&node.home().join("data/weir.usage.v1-0")), BTreeSet::from([0, 1, 2, 3, 4]));
    let ledger = Ledger::start_reading(node.raw()).await;
    charged(&ledger, 50).await;
}

/// As one batch, or a few.
async fn send(kafka: &Kafka, codec: &str, records: Vec<Record>) {
    let mut config = kafka.client_config();
    let producer: FutureProducer =
        config.set("compression.type", codec).set("linger.ms", "100").create().unwrap();
    let sent = records.iter().map(|record| {
        let headers = Origin::to_headers(&GATEWAY.to_string(), record.sequence);
        let message = FutureRecord::to(&record.topic).key(&record.key).payload(&record.payload);
        producer.send(message.headers(headers), Duration::from_secs(30))
    });
    for outcome in join_all(sent).await {
        outcome.unwrap();
    }
}

/// Compressions of a partition's batches, from its first segment (Kafka's record batch, magic 2).
fn codecs(partition: &Path) -> BTreeSet<u16> {
    let segment = std::fs::read(partition.join("00000000000000000000.log")).unwrap();
    let (mut rest, mut found) = (segment.as_slice(), BTreeSet::new());
    while rest.len() > 23 {
        found.insert(u16::from_be_bytes([rest[21], rest[22]]) & 7);
        let length = u32::from_be_bytes(rest[8..12].try_into().unwrap());
        rest = &rest[12 + usize::try_from(length).unwrap()..];
    }
    found
}
