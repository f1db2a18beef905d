//! Kafka, as far as producers and consumers of Weir must agree on it (feature `kafka`): how a cluster is reached
//! ([`Kafka`]), which topics there are ([`Topic`]), and what stands on a message beside its payload ([`Origin`]).
//!
//! Never: producing or consuming. Each side owns its own client, built from [`Kafka::client_config`].

mod client_log;
mod config;
mod origin;
mod probe;
mod topic;
mod topic_check;

pub use client_log::ClientLog;
pub use config::{Kafka, KafkaConfigError, RawKafka, SaslMechanism, Security};
pub use origin::{Origin, OriginError, SENDER_HEADER, SEQUENCE_HEADER};
pub use probe::Cluster;
pub use topic::Topic;
pub use topic_check::{TopicError, ensure_topics};
