//! A broker that asks who comes: senders by SCRAM-SHA-512, the ledger by its certificate, both over TLS.

use std::time::Duration;

use rdkafka::producer::{FutureProducer, FutureRecord};
use weir_schemas::kafka::{Kafka, Origin, RawKafka, Topic, ensure_topics};

use crate::broker::{charge_in, charged};
use crate::private_kafka::GuardedKafka;
use crate::support::{GATEWAY, Ledger};

fn checked(raw: RawKafka) -> Kafka {
    Option::<Kafka>::try_from(raw).unwrap().unwrap()
}

#[tokio::test]
async fn what_a_sender_with_a_password_wrote_a_ledger_with_a_certificate_charges() {
    let guarded = tokio::task::spawn_blocking(|| GuardedKafka::start("hidden-phrase")).await.unwrap();
    let sender = checked(guarded.by_scram());
    ensure_topics(&sender, &Topic::RECORDS).await.unwrap();
    let producer: FutureProducer = sender.client_config().set("enable.idempotence", "true").create().unwrap();
    for record in (1..=20).map(|sequence| charge_in(GATEWAY, sequence)) {
        let headers = Origin::to_headers(&GATEWAY.to_string(), record.sequence);
        let message = FutureRecord::to(&record.topic).key(&record.key).payload(&record.payload);
        producer.send(message.headers(headers), Duration::from_secs(30)).await.unwrap();
    }
    let ledger = Ledger::start_reading(guarded.by_certificate()).await;
    charged(&ledger, 20).await;
}
