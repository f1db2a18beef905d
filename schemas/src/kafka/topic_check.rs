//! Topics that must be there: created where that is allowed, checked where they exist.

use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;

use super::topic::{COMPRESSION, MESSAGE_BYTES_MAX};
use super::{ClientLog, Kafka, Topic};

/// Of one request; a cluster that needs longer is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Events that a client has gathered by then: one for each try of a connection.
const EVENTS_MAX: usize = 32;

/// Why the topics are not as they must be. Everything but a wrong setting may mend itself, so callers try again.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// The settings are unusable for the client library.
    #[error("no Kafka client can be made of these settings")]
    Client(#[source] Box<KafkaError>),
    /// Nobody answers.
    #[error("Kafka at {brokers} does not answer: {reason}")]
    Unreachable {
        /// As configured.
        brokers: String,
        /// What the client said last.
        reason: String,
        /// The cause, behind a pointer: it is several times as large as the rest.
        #[source]
        source: Box<KafkaError>,
    },
    /// It does not exist, and this process is told not to create topics.
    #[error("the topic {topic} does not exist, and kafka.create_topics is false; create it with: {command}")]
    Missing {
        /// Which.
        topic: &'static str,
        /// What an operator runs.
        command: String,
    },
    /// It does not exist, and the cluster does not let this client create it.
    #[error(
        "the cluster refuses to create the topic {topic} ({code}); allow this client CREATE on it, or create it with: {command}"
    )]
    Refused {
        /// Which.
        topic: &'static str,
        /// What the cluster said.
        code: RDKafkaErrorCode,
        /// What an operator runs.
        command: String,
    },
    /// It exists, but cannot be used as it is.
    #[error("the topic {topic} cannot be used: {reason}")]
    Unfit {
        /// Which.
        topic: &'static str,
        /// What is wrong, and what an operator runs.
        reason: String,
    },
    /// The runtime is going down.
    #[error("the check of the topics was cut short")]
    CutShort,
}

/// Makes sure that the topics exist and can be used. Topics may be made by several processes at once.
pub async fn ensure_topics(kafka: &Kafka, topics: &[Topic]) -> Result<(), TopicError> {
    let (kafka, topics) = (kafka.clone(), topics.to_vec());
    let runtime = tokio::runtime::Handle::current();
    // Metadata requests and the end of a client block.
    let check = tokio::task::spawn_blocking(move || {
        let check = Check::start(&kafka)?;
        runtime.block_on(check.run(&topics))
    });
    check.await.map_err(|_| TopicError::CutShort)?
}

struct Check<'a> {
    kafka: &'a Kafka,
    log: ClientLog,
    /// Asks for metadata, and is polled for what went wrong, which nobody can do with an admin client.
    observer: BaseConsumer<ClientLog>,
    admin: AdminClient<ClientLog>,
    options: AdminOptions,
}

impl<'a> Check<'a> {
    fn start(kafka: &'a Kafka) -> Result<Self, TopicError> {
        let log = ClientLog::default();
        let config = kafka.client_config();
        let observer =
            config.create_with_context(log.clone()).map_err(|error| TopicError::Client(Box::new(error)))?;
        let admin =
            config.create_with_context(log.clone()).map_err(|error| TopicError::Client(Box::new(error)))?;
        let options = AdminOptions::new()
            .request_timeout(Some(REQUEST_TIMEOUT))
            .operation_timeout(Some(REQUEST_TIMEOUT));
        Ok(Self { kafka, log, observer, admin, options })
    }

    async fn run(&self, topics: &[Topic]) -> Result<(), TopicError> {
        let metadata =
            self.observer.fetch_metadata(None, REQUEST_TIMEOUT).map_err(|error| self.unreachable(error))?;
        let (there, missing): (Vec<Topic>, Vec<Topic>) =
            topics.iter().partition(|topic| is_there(&metadata, **topic));
        self.check_partitions(&metadata, &there)?;
        self.check_settings(&there).await?;
        self.create(&missing).await
    }

    async fn create(&self, topics: &[Topic]) -> Result<(), TopicError> {
        let Some(first) = topics.first() else { return Ok(()) };
        if !self.kafka.creates_topics() {
            let command = first.creation_command(self.kafka);
            return Err(TopicError::Missing { topic: first.name(), command });
        }
        let retentions: Vec<String> = topics.iter().map(|topic| topic.retention_ms().to_string()).collect();
        let new_topics: Vec<NewTopic<'_>> = topics
            .iter()
            .zip(&retentions)
            .map(|(topic, retention)| {
                let partitions = i32::try_from(topic.partitions(self.kafka)).unwrap_or(i32::MAX);
                // The replication factor is the cluster's own.
                NewTopic::new(topic.name(), partitions, TopicReplication::Fixed(-1))
                    .set("cleanup.policy", "delete")
                    .set("retention.ms", retention)
                    .set("compression.type", COMPRESSION)
            })
            .collect();
        let outcomes = self.admin.create_topics(&new_topics, &self.options).await;
        let outcomes = outcomes.map_err(|error| self.unreachable(error))?;
        for outcome in outcomes {
            match outcome {
                Ok(topic) => tracing::info!(topic, "Kafka topic created"),
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    let topic = topics.iter().find(|topic| topic.name() == name).unwrap_or(first);
                    let command = topic.creation_command(self.kafka);
                    return Err(TopicError::Refused { topic: topic.name(), code, command });
                }
            }
        }
        Ok(())
    }

    fn check_partitions(&self, metadata: &Metadata, topics: &[Topic]) -> Result<(), TopicError> {
        for topic in topics.iter().filter(|topic| topic.is_one_sequence()) {
            let found = metadata.topics().iter().find(|found| found.name() == topic.name());
            let partitions = found.map_or(0, |found| found.partitions().len());
            if partitions > 1 {
                let reason = format!(
                    "it has {partitions} partitions, and its order is one for all; delete it, then run: {}",
                    topic.creation_command(self.kafka)
                );
                return Err(TopicError::Unfit { topic: topic.name(), reason });
            }
        }
        Ok(())
    }

    /// Settings under which records would vanish or not fit. Where the cluster does not show them, nothing is said.
    async fn check_settings(&self, topics: &[Topic]) -> Result<(), TopicError> {
        let asked: Vec<ResourceSpecifier<'_>> =
            topics.iter().map(|topic| ResourceSpecifier::Topic(topic.name())).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let answers = self.admin.describe_configs(&asked, &self.options).await;
        let answers = answers.map_err(|error| self.unreachable(error))?;
        for answer in answers {
            match answer {
                Ok(settings) => {
                    let is_meant = |topic: &&Topic| {
                        settings.specifier == OwnedResourceSpecifier::Topic(topic.name().to_owned())
                    };
                    if let Some(topic) = topics.iter().find(is_meant) {
                        check_topic_settings(self.kafka, *topic, &settings)?;
                    }
                }
                Err(code) => tracing::debug!(%code, "Kafka does not show a topic's settings"),
            }
        }
        Ok(())
    }

    fn unreachable(&self, source: KafkaError) -> TopicError {
        // Each turn takes one event; the last one stands.
        for _ in 0..EVENTS_MAX {
            drop(self.observer.poll(Duration::ZERO));
        }
        let reason = self.log.take_last_error().unwrap_or_else(|| "no connection yet".to_owned());
        TopicError::Unreachable { brokers: self.kafka.brokers().to_owned(), reason, source: Box::new(source) }
    }
}

fn is_there(metadata: &Metadata, topic: Topic) -> bool {
    metadata.topics().iter().any(|found| found.name() == topic.name() && found.error().is_none())
}

fn check_topic_settings(kafka: &Kafka, topic: Topic, settings: &ConfigResource) -> Result<(), TopicError> {
    let value = |key: &str| settings.get(key).and_then(|entry| entry.value.as_deref());
    let unfit = |key: &str, actual: &str, wanted: &str, why: &str| {
        let reason = format!(
            "{key} is {actual}, so {why}; run: kafka-configs.sh --bootstrap-server {} --alter --topic {} \
             --add-config {key}={wanted}",
            kafka.brokers(),
            topic.name()
        );
        Err(TopicError::Unfit { topic: topic.name(), reason })
    };
    if let Some(policy) = value("cleanup.policy").filter(|policy| policy.contains("compact")) {
        return unfit(
            "cleanup.policy",
            policy,
            "delete",
            "only the last record of each tenant would be kept",
        );
    }
    if let Some(bytes) = value("max.message.bytes")
        && bytes.parse::<u64>().is_ok_and(|bytes| bytes < MESSAGE_BYTES_MAX)
    {
        let wanted = MESSAGE_BYTES_MAX.to_string();
        return unfit("max.message.bytes", bytes, &wanted, "a large record would not fit");
    }
    Ok(())
}
