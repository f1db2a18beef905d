//! The ledger as a consumer of Kafka: messages of the record topics, batch by batch, into [`Intake`].
//!
//! Owns: which partitions are read from where. A batch and the offsets behind it are one transaction, conditional on
//! the offsets being where the batch began; so whoever else believes to own a partition, each record is taken once.
//! Whatever goes wrong (Postgres away, a partition taken over, offsets that jump) has one answer: forget what is not
//! committed, look the positions up again, and read on from there. Never: waiting for Postgres without polling, which
//! would cost the membership in the group.

mod filling;
mod group;
mod message;
mod partitions;
mod upkeep;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message as _;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_schemas::kafka::{Kafka, Topic, ensure_topics};

use self::filling::Filling;
use self::group::{Assigned, Client};
use self::partitions::{Asked, Partitions, Step};
use self::upkeep::{Found, UpkeepError, look_after};
use crate::batch::AppendError;
use crate::rpc::{LedgerService, Obstacle};
use crate::store::offsets::Partition;

/// How often positions are marked in Kafka, and how late a topic that was made anew is noticed at the latest.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// First and longest wait after positions could not be looked up.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Records that lie in a partition for this long without coming: the client will not bring them any more. Far beyond what
/// a broker's restart or a rebalance takes.
const STUCK_MAX: Duration = Duration::from_secs(30);
/// How long a batch under way may take to commit, and the group to be left, when the process stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Topics that the ledger reads or writes.
const TOPICS: [Topic; 5] =
    [Topic::Usage, Topic::Executions, Topic::Rejections, Topic::Damaged, Topic::DeadLetters];

/// A consumer that has not been started.
pub(crate) struct Consumer {
    kafka: Kafka,
    client: Arc<Client>,
    assigned: watch::Receiver<Assigned>,
    service: LedgerService,
    obstacle: Arc<Obstacle>,
    partitions: Partitions,
    filling: Filling,
    /// The client was made anew because of these positions.
    renewed_at: HashMap<Partition, i64>,
    /// Whether it was said that Kafka is not there.
    is_troubled: bool,
}

/// Why consuming ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancelled,
    /// The client cannot be used any more, and another can.
    StaleClient,
}

/// What the upkeep leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Settled,
    /// Positions are to be looked up again soon.
    Again,
    StaleClient,
}

impl Consumer {
    /// Connects later; fails only where the settings are unusable.
    pub(crate) fn new(kafka: Kafka, service: LedgerService, obstacle: Arc<Obstacle>) -> KafkaResult<Self> {
        let (client, assigned) = group::client(&kafka)?;
        let client = Arc::new(client);
        let (partitions, filling) = (Partitions::default(), Filling::default());
        Ok(Self {
            kafka,
            client,
            assigned,
            service,
            obstacle,
            partitions,
            filling,
            renewed_at: HashMap::new(),
            is_troubled: false,
        })
    }

    /// Consumes until cancelled; then commits what is under way and leaves the group.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut commits = JoinSet::new();
        while cancel.run_until_cancelled(self.join()).await.is_some() {
            match self.consume(&mut commits, &cancel).await {
                End::Cancelled => break,
                End::StaleClient => self.renew().await,
            }
        }
        let under_way = async { while commits.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, under_way).await.is_err() {
            tracing::warn!("a batch did not commit in time; it is read again");
        }
        drop(commits);
        // Leaving the group blocks.
        let left = tokio::task::spawn_blocking(move || drop(self.client));
        if tokio::time::timeout(STOP_TIMEOUT, left).await.is_err() {
            tracing::warn!("Kafka did not confirm in time that the consumer left its group");
        }
    }

    /// Leaves the group and forgets all that the client knows of the cluster. It holds on to the highest leader epoch
    /// that it saw of a partition, which a topic made anew begins again: nothing of that would ever be read (KIP-320).
    async fn renew(&mut self) {
        match group::client(&self.kafka) {
            Ok((client, assigned)) => {
                let old = std::mem::replace(&mut self.client, Arc::new(client));
                self.assigned = assigned;
                let left = tokio::task::spawn_blocking(move || drop(old));
                if tokio::time::timeout(STOP_TIMEOUT, left).await.is_err() {
                    tracing::debug!("Kafka did not confirm in time that the old client left its group");
                }
            }
            Err(error) => self.trouble(&error.into()),
        }
        (self.partitions, self.filling) = (Partitions::default(), Filling::default());
    }

    /// Waits for Postgres and Kafka, in whatever order they come, and joins the group.
    async fn join(&mut self) {
        if self.service.migrated.wait_for(|migrated| *migrated).await.is_err() {
            return std::future::pending().await;
        }
        let mut wait = RETRY_WAIT.0;
        let topics = Topic::RECORDS.map(Topic::name);
        loop {
            let outcome = match ensure_topics(&self.kafka, &TOPICS).await {
                Ok(()) => self.client.subscribe(&topics).map_err(UpkeepError::Kafka),
                Err(error) => Err(UpkeepError::Topics(error)),
            };
            match outcome {
                Ok(()) => return,
                Err(error) => self.trouble(&error),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_WAIT.1);
        }
    }

    async fn consume(
        &mut self,
        commits: &mut JoinSet<Result<(), AppendError>>,
        cancel: &CancellationToken,
    ) -> End {
        let client = Arc::clone(&self.client);
        let mut upkeep = JoinSet::new();
        let (mut due, mut wait) = (Instant::now(), RETRY_WAIT.0);
        let mut check_topics = false;
        loop {
            // Positions are looked up once what was read before is committed; nothing more is read until then.
            let is_due = upkeep.is_empty() && Instant::now() >= due;
            let settles = is_due && self.partitions.any_unread();
            if is_due && (!settles || (commits.is_empty() && self.filling.is_empty())) {
                upkeep.spawn(self.upkeep(check_topics));
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return End::Cancelled,
                Ok(()) = self.assigned.changed() => {
                    self.partitions.regroup(&self.assigned.borrow_and_update());
                    due = Instant::now();
                }
                Some(outcome) = commits.join_next() => {
                    if !self.committed(outcome) {
                        due = Instant::now();
                    }
                }
                Some(outcome) = upkeep.join_next() => {
                    let found = outcome.unwrap_or(Err(UpkeepError::CutShort));
                    check_topics = matches!(&found, Err(UpkeepError::Kafka(_) | UpkeepError::Topics(_)));
                    let upkeep = self.looked_after(found);
                    if upkeep == Upkeep::StaleClient {
                        return End::StaleClient;
                    }
                    let is_settled = upkeep == Upkeep::Settled;
                    due = Instant::now() + if is_settled { UPKEEP_INTERVAL } else { wait };
                    wait = if is_settled { RETRY_WAIT.0 } else { (wait * 2).min(RETRY_WAIT.1) };
                }
                () = tokio::time::sleep_until(due), if !is_due && upkeep.is_empty() => {}
                received = client.recv(), if !settles && !self.filling.is_full() => {
                    if !self.received(received) {
                        due = due.min(Instant::now() + RETRY_WAIT.0);
                    }
                }
                () = std::future::ready(()), if commits.is_empty() && !self.filling.is_empty() => {
                    self.start_commit(commits);
                }
            }
        }
    }

    /// Takes a message; `false` where its partition is not what it was.
    fn received(&mut self, received: KafkaResult<BorrowedMessage<'_>>) -> bool {
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the Kafka client reports");
                if needs_someone(&error) {
                    self.trouble(&UpkeepError::Kafka(error));
                }
                return false;
            }
        };
        let Some(partition) = Partition::of(message.topic(), message.partition()) else { return true };
        match self.partitions.step(partition, message.offset()) {
            Step::Next(from) => {
                self.filling.push(partition, from, message.offset(), message::read(partition, &message));
                true
            }
            Step::Skip => true,
            Step::Astray => {
                tracing::warn!(%partition, offset = message.offset(), "an offset that was not expected; looking into it");
                self.hold(Some(partition));
                false
            }
        }
    }

    fn start_commit(&mut self, commits: &mut JoinSet<Result<(), AppendError>>) {
        let (batch, service) = (self.filling.take(), self.service.clone());
        commits.spawn(async move {
            // Fails only when the process ends.
            let _turn = service.turns.acquire().await;
            service.intake.append(batch).await
        });
    }

    /// What became of a batch; `false` where positions are to be looked up again.
    fn committed(&mut self, outcome: Result<Result<(), AppendError>, JoinError>) -> bool {
        match outcome {
            Ok(Ok(())) => {
                self.service.here();
                return true;
            }
            Ok(Err(error @ AppendError::Postgres(_))) => drop(self.service.away(&error)),
            Ok(Err(AppendError::Fenced)) => {
                self.service.intake.metrics.fenced();
                tracing::info!("another consumer took these records; reading on behind them");
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a batch ended abnormally");
            }
        }
        self.filling = Filling::default();
        self.hold(None);
        false
    }

    /// Stops reading a partition, or all, until positions are looked up.
    fn hold(&mut self, only: Option<Partition>) {
        let mut held = TopicPartitionList::new();
        for Asked { partition, .. } in self.partitions.asked() {
            if only.is_none_or(|only| only == partition) {
                held.add_partition(partition.topic, partition.number);
            }
        }
        self.partitions.forget(only);
        if let Err(error) = self.client.pause(&held) {
            tracing::debug!(error = &error as &dyn std::error::Error, "partitions could not be held still");
        }
    }

    fn upkeep(&self, check_topics: bool) -> impl Future<Output = Result<Vec<Found>, UpkeepError>> + 'static {
        let (client, intake) = (Arc::clone(&self.client), self.service.intake.clone());
        let asked = self.partitions.asked();
        // Nothing is assigned where the topics are gone, or where others have them all.
        let kafka = (check_topics || asked.is_empty()).then(|| self.kafka.clone());
        async move {
            if let Some(kafka) = kafka {
                ensure_topics(&kafka, &TOPICS).await?;
            }
            look_after(client, intake, asked).await
        }
    }

    /// Reads on from positions that were found.
    fn looked_after(&mut self, outcome: Result<Vec<Found>, UpkeepError>) -> Upkeep {
        let found = match outcome {
            Ok(found) => found,
            Err(error) => {
                self.trouble(&error);
                return Upkeep::Again;
            }
        };
        self.clear();
        self.service.here();
        let behind = found.iter().map(|found| (found.asked.partition.topic, found.behind));
        self.service.intake.metrics.behind(behind);
        // What was read, and what the client believes, may belong to a life that has ended.
        if found.iter().any(|found| found.is_new && found.had_life) || self.is_stuck(&found) {
            return Upkeep::StaleClient;
        }
        let mut begun = TopicPartitionList::new();
        for Found { asked, position, is_placed, .. } in found {
            if is_placed && self.partitions.begin(asked, position) {
                begun.add_partition(asked.partition.topic, asked.partition.number);
            }
        }
        if begun.count() > 0
            && let Err(error) = self.client.resume(&begun)
        {
            self.trouble(&error.into());
            self.hold(None);
        }
        if self.partitions.any_unread() { Upkeep::Again } else { Upkeep::Settled }
    }

    /// Whether the client has kept records back for too long. Tried once for a position: what lies there may be no record.
    fn is_stuck(&mut self, found: &[Found]) -> bool {
        let mut is_stuck = false;
        for Found { asked, position, behind, .. } in found {
            let Some(since) = self.partitions.found(*asked, position, *behind > 0) else { continue };
            let is_tried = self.renewed_at.get(&asked.partition) == Some(&position.next_offset);
            if since.elapsed() >= STUCK_MAX && !is_tried {
                self.renewed_at.insert(asked.partition, position.next_offset);
                tracing::warn!(
                    partition = %asked.partition,
                    offset = position.next_offset,
                    behind,
                    "records lie in Kafka and do not come; making the client anew"
                );
                is_stuck = true;
            }
        }
        is_stuck
    }

    /// Something is not there: said once, until it is.
    fn trouble(&mut self, error: &UpkeepError) {
        if let UpkeepError::Postgres(_) = error {
            drop(self.service.away(error));
            return;
        }
        let last_words = self.client.context().log.take_last_error();
        let mut reason = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            reason = format!("{reason}: {error}");
            cause = error.source();
        }
        if let Some(last_words) = last_words {
            reason = format!("{reason} ({last_words})");
        }
        if !std::mem::replace(&mut self.is_troubled, true) {
            tracing::warn!(reason, "the ledger waits for Kafka; senders keep their records");
        }
        self.service.intake.metrics.kafka_up(false);
        self.obstacle.send_replace(Some(reason));
    }

    /// Kafka answered.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_troubled) {
            tracing::info!("Kafka answers; records are read");
        }
        self.service.intake.metrics.kafka_up(true);
        self.obstacle.send_replace(None);
    }
}

/// Whether an error of the client will not mend itself: permissions, or messages that it cannot unpack.
fn needs_someone(error: &KafkaError) -> bool {
    use rdkafka::error::RDKafkaErrorCode as Code;
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        let wanted = [
            Code::TopicAuthorizationFailed,
            Code::GroupAuthorizationFailed,
            Code::SaslAuthenticationFailed,
            Code::BadCompression,
            Code::BadMessage,
            Code::NotImplemented,
        ];
        wanted.contains(&code)
    })
}
