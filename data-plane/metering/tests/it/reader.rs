//! The ledger's consumer at its simplest: reads every record topic from its start, puts what one sender sent into the
//! test ledger, and holds the order of each tenant's records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{Offset, TopicPartitionList};
use weir_schemas::kafka::{ClientLog, Kafka, Origin, Topic};

use crate::ledger::TestLedger;

/// A thread that reads until it is dropped.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    /// Messages of the sender, resent ones included.
    pub(crate) messages: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Reads for `ledger` what `sender` sends, but nothing above `last`.
    pub(crate) fn start(kafka: &Kafka, ledger: &TestLedger, sender: &str, last: u64) -> Self {
        Self::start_with(kafka, ledger, sender, last, true)
    }

    /// The same after a loss, in whatever order.
    pub(crate) fn start_after_loss(kafka: &Kafka, ledger: &TestLedger, sender: &str) -> Self {
        Self::start_with(kafka, ledger, sender, u64::MAX, false)
    }

    fn start_with(kafka: &Kafka, ledger: &TestLedger, sender: &str, last: u64, holds_order: bool) -> Self {
        let (stop, messages) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut reading = Reading {
            kafka: kafka.clone(),
            ledger: ledger.clone(),
            sender: sender.to_owned(),
            last,
            messages: messages.clone(),
            holds_order,
            seen: BTreeMap::new(),
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || reading.run(&stopped));
        Self { stop, messages, thread: Some(thread) }
    }

    /// Ends it; what it found wrong is a panic here.
    pub(crate) fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = self.thread.take().unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Reading {
    kafka: Kafka,
    ledger: TestLedger,
    sender: String,
    last: u64,
    messages: Arc<AtomicUsize>,
    /// A broker that lost acknowledged records gets them again after newer ones.
    holds_order: bool,
    /// Highest sequence of each tenant.
    seen: BTreeMap<String, u64>,
}

impl Reading {
    fn run(&mut self, stopped: &AtomicBool) {
        let mut config = self.kafka.client_config();
        config.set("group.id", "reader").set("enable.auto.commit", "false");
        let consumer: BaseConsumer<ClientLog> = config.create_with_context(ClientLog::default()).unwrap();
        while !self.assign(&consumer) {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
        }
        while !stopped.load(Ordering::Relaxed) {
            // Errors are a broker that is away; the client comes back to it.
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
                self.take(&message);
            }
        }
    }

    /// Every partition of every record topic from its start, once they are all there.
    fn assign(&self, consumer: &BaseConsumer<ClientLog>) -> bool {
        let Ok(metadata) = consumer.fetch_metadata(None, Duration::from_secs(1)) else { return false };
        let mut partitions = TopicPartitionList::new();
        for topic in Topic::RECORDS {
            let Some(found) = metadata.topics().iter().find(|found| found.name() == topic.name()) else {
                std::thread::sleep(Duration::from_millis(20));
                return false;
            };
            for partition in found.partitions() {
                partitions.add_partition_offset(topic.name(), partition.id(), Offset::Beginning).unwrap();
            }
        }
        consumer.assign(&partitions).unwrap();
        true
    }

    fn take(&mut self, message: &BorrowedMessage<'_>) {
        let origin = Origin::from_headers(message.headers()).unwrap();
        if origin.sender_id != self.sender || origin.sequence > self.last {
            return;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        let tenant = std::str::from_utf8(message.key().unwrap_or_default()).unwrap().to_owned();
        let payload = message.payload().unwrap().to_vec();
        assert_eq!(payload, format!("\"record {}\"", origin.sequence).as_bytes());
        let highest = self.seen.entry(tenant.clone()).or_insert(0);
        let mut held = self.ledger.0.lock().unwrap();
        let is_new = held.records.insert(origin.sequence, payload).is_none();
        // Without a key there is no order to hold.
        assert!(
            !is_new || tenant.is_empty() || !self.holds_order || origin.sequence > *highest,
            "record {} first appears after {} of its tenant",
            origin.sequence,
            highest
        );
        *highest = origin.sequence.max(*highest);
    }
}
