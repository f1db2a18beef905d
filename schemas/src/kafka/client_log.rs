//! What the Kafka client says of itself. A broker that is away makes it say the same line every second; whoever waits
//! for the broker reports that once, with the last of these lines as the reason.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// A line of the client's; longer ones are cut.
const REASON_CHARS_MAX: usize = 300;

/// A client context: the client's log goes to `tracing` (level debug, target `kafka`), its last error is remembered.
/// Clones share what they remember.
#[derive(Debug, Clone, Default)]
pub struct ClientLog {
    last_error: Arc<Mutex<Option<String>>>,
}

impl ClientLog {
    /// The last error since the last call, e.g. why no broker can be reached.
    pub fn take_last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn remember(&self, reason: &str) {
        let reason = reason.chars().take(REASON_CHARS_MAX).collect();
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }
}

impl ClientContext for ClientLog {
    /// A client that nobody polls tells its errors here only.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "kafka", ?level, facility, message);
        if matches!(
            level,
            RDKafkaLogLevel::Emerg
                | RDKafkaLogLevel::Alert
                | RDKafkaLogLevel::Critical
                | RDKafkaLogLevel::Error
        ) {
            self.remember(message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "kafka", %error, reason);
        // That they are all away is said after why each of them is, and is the lesser news.
        if error != KafkaError::Global(RDKafkaErrorCode::AllBrokersDown) {
            self.remember(reason);
        }
    }
}

impl ConsumerContext for ClientLog {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told_once_and_cut() {
        let log = ClientLog::default();
        let client = log.clone();
        client.error(KafkaError::Global(RDKafkaErrorCode::Authentication), "first");
        client.error(KafkaError::Global(RDKafkaErrorCode::BrokerTransportFailure), &"é".repeat(1000));
        client.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), "1/1 brokers are down");
        assert_eq!(log.take_last_error(), Some("é".repeat(REASON_CHARS_MAX)));
        assert_eq!(log.take_last_error(), None);
        client.log(RDKafkaLogLevel::Error, "FAIL", "refused");
        client.log(RDKafkaLogLevel::Warning, "CONFWARN", "unimportant");
        assert_eq!(log.take_last_error().as_deref(), Some("refused"));
    }
}
