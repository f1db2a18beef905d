//! A broker of a test's own, and records on their way through it.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::{Mutex, MutexGuard};
use weir_schemas::ids::GatewayId;
use weir_schemas::kafka::{Kafka, Origin, Topic, ensure_topics};
use weir_schemas::records::ChargeData;
use weir_schemas::rpc::ledger::Record;

use crate::private_kafka::PrivateKafka;
use crate::support::{Ledger, charge_of, within_a_minute};

/// Topics and group have one name each, so every test has a broker to itself, and this machine one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A broker with its topics, and a producer.
pub(crate) struct Broker {
    pub(crate) node: PrivateKafka,
    pub(crate) kafka: Kafka,
    producer: FutureProducer,
    _turn: MutexGuard<'static, ()>,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let turn = ONE_AT_A_TIME.lock().await;
        let node = tokio::task::spawn_blocking(PrivateKafka::start).await.unwrap();
        let kafka = node.kafka();
        ensure_topics(&kafka, &Topic::RECORDS).await.unwrap();
        let producer = kafka.client_config().set("enable.idempotence", "true").create().unwrap();
        Self { node, kafka, producer, _turn: turn }
    }

    /// A ledger that reads from here.
    pub(crate) async fn ledger(&self) -> Ledger {
        Ledger::start_reading(self.node.raw()).await
    }

    /// Sends what a sender's relay would.
    pub(crate) async fn send(&self, sender: &str, records: impl IntoIterator<Item = Record>) {
        for record in records {
            let headers = Some(Origin::to_headers(sender, record.sequence));
            self.send_raw(&record.topic, &record.key, headers, Some(&record.payload)).await;
        }
    }

    /// Sends anything.
    pub(crate) async fn send_raw(
        &self,
        topic: &str,
        key: &str,
        headers: Option<OwnedHeaders>,
        payload: Option<&[u8]>,
    ) {
        let mut record: FutureRecord<'_, str, [u8]> = FutureRecord::to(topic).key(key);
        record.payload = payload;
        record.headers = headers;
        self.producer.send(record, Duration::from_secs(30)).await.unwrap();
    }

    pub(crate) fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.kafka.client_config().create().unwrap()
    }

    /// Deletes the record topics, and waits until they are gone.
    pub(crate) async fn delete_topics(&self) {
        let names = Topic::RECORDS.map(Topic::name);
        for outcome in self.admin().delete_topics(&names, &AdminOptions::new()).await.unwrap() {
            outcome.unwrap();
        }
    }

    /// The group's committed offsets, as the cluster has them, summed; 0 for those it has none of.
    pub(crate) async fn marked(&self) -> i64 {
        let consumer: BaseConsumer =
            self.kafka.client_config().set("group.id", "weir-ledger").create().unwrap();
        let partitions = i32::try_from(self.kafka.partitions()).unwrap();
        tokio::task::spawn_blocking(move || {
            let mut list = TopicPartitionList::new();
            list.add_partition_range(Topic::Usage.name(), 0, partitions - 1);
            let committed = consumer.committed_offsets(list, Duration::from_secs(30)).unwrap();
            committed
                .elements()
                .iter()
                .filter_map(|entry| entry.offset().to_raw())
                .map(|raw| raw.max(0))
                .sum()
        })
        .await
        .unwrap()
    }

    /// Reads `count` messages of a topic with one partition, from its start.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        topic: &'static str,
        count: usize,
        map: fn(&BorrowedMessage<'_>) -> T,
    ) -> Vec<T> {
        let consumer: BaseConsumer = self.kafka.client_config().set("group.id", "test").create().unwrap();
        tokio::task::spawn_blocking(move || {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
            consumer.assign(&list).unwrap();
            let messages =
                std::iter::repeat_with(|| consumer.poll(Duration::from_secs(60)).expect("a message"));
            messages.take(count).map(|message| map(&message.unwrap())).collect()
        })
        .await
        .unwrap()
    }
}

/// A request of one of some tenants, so that a gateway's records lie in several partitions.
pub(crate) fn charge_in(sender: GatewayId, sequence: u64) -> Record {
    let tenant = weir_schemas::ids::TenantId::from_u128(100 + u128::from(sequence % 20));
    let number = sender.as_u128() * 1_000_000 + u128::from(sequence);
    charge_of(sender, sequence, number, |data: &mut ChargeData| data.tenant = tenant)
}

/// Waits until the ledger has so many charges, and checks that it stays so.
pub(crate) async fn charged(ledger: &Ledger, count: i64) {
    within_a_minute(async || ledger.count("ledger_charges").await >= count).await;
    assert_eq!(ledger.count("ledger_charges").await, count);
}
