//! Whether a cluster answers: one metadata request.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;

use super::{ClientLog, Kafka};

/// What a cluster says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Brokers that are up.
    pub brokers: usize,
    /// Topics whose partitions all have a leader, by name.
    pub topics: Vec<String>,
    /// Partitions that nobody leads at the moment: nothing can be written there yet.
    pub leaderless_partitions: usize,
}

impl Kafka {
    /// Asks the cluster. Blocks, at most for `timeout`.
    pub fn describe(&self, timeout: Duration) -> KafkaResult<Cluster> {
        let client: BaseConsumer<ClientLog> =
            self.client_config().create_with_context(ClientLog::default())?;
        let metadata = client.fetch_metadata(None, timeout)?;
        let leaderless = |topic: &rdkafka::metadata::MetadataTopic| {
            topic.partitions().iter().filter(|partition| partition.leader() < 0).count()
        };
        let led = metadata.topics().iter().filter(|topic| leaderless(topic) == 0);
        Ok(Cluster {
            brokers: metadata.brokers().len(),
            topics: led.map(|topic| topic.name().to_owned()).collect(),
            leaderless_partitions: metadata.topics().iter().map(leaderless).sum(),
        })
    }
}
