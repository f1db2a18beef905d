//! This consumer's part in its group: the client, and which partitions the group gave it.
//!
//! The group's callback runs inside a poll and must not wait for Postgres. So a partition that comes is held still,
//! and the consumer's loop lets it go once its position is known.

use std::collections::BTreeMap;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::watch;
use weir_schemas::kafka::{ClientLog, Kafka};

use crate::store::offsets::Partition;

/// All ledgers of an installation are one group.
pub(crate) const GROUP: &str = "weir-ledger";
/// A ledger that died is replaced within this.
const SESSION_TIMEOUT_MS: &str = "10000";
/// Records that the client library reads ahead, all partitions together.
const READ_AHEAD_KBYTES: &str = "16384";
/// How late a topic that was made anew, or a new partition, is noticed.
const METADATA_REFRESH_MS: &str = "5000";
/// An empty partition's fetch waits no longer for a record.
const FETCH_WAIT_MS: &str = "100";

/// The client of one ledger.
pub(super) type Client = StreamConsumer<Group>;

/// Partitions that are ours, each with a number that changes whenever it was given anew.
pub(super) type Assigned = BTreeMap<Partition, u64>;

/// Connects lazily; fails only where the settings are unusable.
pub(crate) fn client(kafka: &Kafka) -> KafkaResult<(Client, watch::Receiver<Assigned>)> {
    let (assigned, receiver) = watch::channel(Assigned::new());
    let group = Group { log: ClientLog::default(), assigned };
    let client = kafka
        .client_config()
        .set("group.id", GROUP)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", SESSION_TIMEOUT_MS)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // A position that is out of range comes back as an offset that was not expected, and is looked into.
        .set("auto.offset.reset", "earliest")
        .set("queued.max.messages.kbytes", READ_AHEAD_KBYTES)
        .set("topic.metadata.refresh.interval.ms", METADATA_REFRESH_MS)
        .set("fetch.wait.max.ms", FETCH_WAIT_MS)
        .create_with_context(group)?;
    Ok((client, receiver))
}

/// What the client library calls back.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) log: ClientLog,
    assigned: watch::Sender<Assigned>,
}

impl ClientContext for Group {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.log.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ConsumerContext for Group {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        kind: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let outcome = match kind {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.given(consumer, partitions),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS => self.taken(consumer, partitions),
            _ => {
                self.assigned.send_replace(Assigned::new());
                consumer.unassign()
            }
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "the consumer group's rebalance failed here");
        }
    }
}

impl Group {
    fn given(&self, consumer: &BaseConsumer<Self>, partitions: &mut TopicPartitionList) -> KafkaResult<()> {
        // Any offset will do: nothing is read before the position is known.
        partitions.set_all_offsets(Offset::Offset(0))?;
        consumer.incremental_assign(partitions)?;
        consumer.pause(partitions)?;
        self.assigned.send_modify(|assigned| {
            let number = assigned.values().max().map_or(0, |number| number + 1);
            assigned.extend(named(partitions).map(|partition| (partition, number)));
        });
        Ok(())
    }

    fn taken(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) -> KafkaResult<()> {
        self.assigned.send_modify(|assigned| {
            for partition in named(partitions) {
                assigned.remove(&partition);
            }
        });
        consumer.incremental_unassign(partitions)
    }
}

fn named(partitions: &TopicPartitionList) -> impl Iterator<Item = Partition> {
    partitions
        .elements()
        .into_iter()
        .filter_map(|element| Partition::of(element.topic(), element.partition()))
}
