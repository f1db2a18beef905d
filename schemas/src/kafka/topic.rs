//! The topics there are. A new one, or a new version of one, is a new variant; nothing else names a topic.

use super::Kafka;
use crate::records::{CONTROL_TOPIC, DAMAGED_TOPIC, EXECUTIONS_TOPIC, REJECTIONS_TOPIC, USAGE_TOPIC};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// A record is at most 32 KiB; its headers and Kafka's own frame are far below the rest.
pub(super) const MESSAGE_BYTES_MAX: u64 = 64 * 1024;

/// As senders compress, so that the broker need not; and what anyone else sends is brought into it, because a batch in
/// a form that the ledger's client was not built for would hold its partition up.
pub(super) const COMPRESSION: &str = "lz4";

/// A topic of Weir's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Charge records, keyed by tenant.
    Usage,
    /// Execution records, keyed by tenant.
    Executions,
    /// Counted rejections, keyed by tenant where known.
    Rejections,
    /// Sequence numbers whose record a sender's disk damaged or lost.
    Damaged,
    /// The control plane's event log, in order.
    Control,
    /// Copies of what the ledger could not use.
    DeadLetters,
}

impl Topic {
    /// What senders write to and the ledger reads.
    pub const RECORDS: [Self; 4] = [Self::Usage, Self::Executions, Self::Rejections, Self::Damaged];

    /// Its name on the cluster.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usage => USAGE_TOPIC,
            Self::Executions => EXECUTIONS_TOPIC,
            Self::Rejections => REJECTIONS_TOPIC,
            Self::Damaged => DAMAGED_TOPIC,
            Self::Control => CONTROL_TOPIC,
            Self::DeadLetters => "weir.dead-letters.v1",
        }
    }

    /// Partitions where it is created by Weir.
    pub fn partitions(self, kafka: &Kafka) -> u32 {
        match self {
            Self::Usage | Self::Executions | Self::Rejections | Self::Damaged => kafka.partitions(),
            Self::Control | Self::DeadLetters => 1,
        }
    }

    /// Whether its order is one for all keys, so that a second partition would break it.
    pub(super) fn is_one_sequence(self) -> bool {
        self == Self::Control
    }

    /// How long a message is kept where the topic is created by Weir, in milliseconds; -1 is for ever. For the ledger
    /// a minute would do, as senders keep what it lacks; the rest is for other readers.
    pub fn retention_ms(self) -> i64 {
        match self {
            Self::Usage | Self::Executions | Self::Rejections | Self::Damaged => 7 * DAY_MS,
            // The whole history, which is small: a reader that comes late can begin at the beginning.
            Self::Control => -1,
            Self::DeadLetters => 30 * DAY_MS,
        }
    }

    /// What an operator runs to make it.
    pub fn creation_command(self, kafka: &Kafka) -> String {
        format!(
            "kafka-topics.sh --bootstrap-server {} --create --topic {} --partitions {} --config cleanup.policy=delete --config compression.type={COMPRESSION} --config retention.ms={}",
            kafka.brokers(),
            self.name(),
            self.partitions(kafka),
            self.retention_ms()
        )
    }
}
