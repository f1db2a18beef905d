//! Looking after positions: where each partition is read from, and whether its topic still is the one that the
//! position belongs to.
//!
//! Postgres holds the position and names the topic's incarnation; the group's committed offset in Kafka carries that
//! name as metadata and vanishes with the topic. So the mark in Kafka is only ever written here, after it was found
//! to be the right one: a topic that was deleted and made anew in between is seen, however fast it grew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use weir_schemas::kafka::TopicError;

use super::group::Client;
use super::partitions::Asked;
use crate::batch::Intake;
use crate::store::offsets::{Partition, Position};
use crate::store::{hearing, offsets};

/// Of one question to the cluster.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A partition is heard while no more than a batch of it is waiting: under load there is always something on its way.
const HEARD_BEHIND: i64 = 2_000;

/// What was found of a partition.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) asked: Asked,
    /// Where reading goes on.
    pub(super) position: Position,
    /// It is another life of the topic than before.
    pub(super) is_new: bool,
    /// It had another life before, of which the client may remember something.
    pub(super) had_life: bool,
    /// Records that are there and not taken.
    pub(super) behind: i64,
    /// The client stands at the position; of one that is not being read.
    pub(super) is_placed: bool,
}

/// Why nothing was found. All of it mends itself: the question is asked again.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpkeepError {
    /// Postgres is away or unwell.
    #[error("the ledger's database does not answer")]
    Postgres(#[from] sqlx::Error),
    /// Kafka is.
    #[error("Kafka does not answer")]
    Kafka(#[from] KafkaError),
    /// The topics are not as they must be.
    #[error("the topics are not ready")]
    Topics(#[from] TopicError),
    /// Another consumer moved a position at this moment.
    #[error("another consumer has taken a partition over")]
    Moved,
    /// The process is going down.
    #[error("cut short")]
    CutShort,
}

/// What the cluster says of a partition.
#[derive(Debug, Clone)]
struct Seen {
    /// The metadata of the group's committed offset; empty where there is none.
    mark: String,
    /// The committed offset itself.
    marked: Offset,
    /// First offset that is there.
    low: i64,
    /// First offset that is not there yet.
    high: i64,
}

/// Whether a stored position can be read on from.
#[derive(Debug, PartialEq, Eq)]
enum Life {
    Goes,
    Begins {
        why: &'static str,
        /// Records that the broker had acknowledged may be missing.
        lost: bool,
    },
}

fn judge(stored: Option<&Position>, seen: &Seen) -> Life {
    let Some(Position { incarnation, next_offset }) = stored else {
        return Life::Begins { why: "it is read for the first time", lost: seen.low > 0 };
    };
    if seen.mark != **incarnation {
        Life::Begins { why: "its topic was made anew, or the cluster forgot the group", lost: true }
    } else if *next_offset > seen.high {
        Life::Begins { why: "it was cut short", lost: true }
    } else if *next_offset < seen.low {
        Life::Begins { why: "records were deleted before they were read", lost: true }
    } else {
        Life::Goes
    }
}

/// Finds the positions of these partitions, begins new lives, marks the rest in Kafka, and places the client at those
/// that are not being read.
pub(super) async fn look_after(
    client: Arc<Client>,
    intake: Intake,
    asked: Vec<Asked>,
) -> Result<Vec<Found>, UpkeepError> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let partitions: Vec<Partition> = asked.iter().map(|asked| asked.partition).collect();
    // Before the cluster is asked: a position that was read later could be ahead of an answer that is old.
    let stored = offsets::positions(&mut *intake.pool.acquire().await?, &partitions).await?;
    let seen = ask(&client, &partitions).await?;
    let mut found = Vec::with_capacity(asked.len());
    let (mut begun, mut lost, mut marks) = (Vec::new(), false, Vec::new());
    for (asked, seen) in asked.into_iter().zip(seen) {
        let before = stored.get(&asked.partition);
        let (position, is_new) = match (judge(before, &seen), before) {
            (Life::Goes, Some(position)) => (position.clone(), false),
            (Life::Goes, None) => return Err(UpkeepError::Moved),
            (Life::Begins { why, lost: may_lack }, _) => {
                tracing::info!(partition = %asked.partition, offset = seen.low, why, "a partition is read from its start");
                lost |= may_lack;
                let incarnation = offsets::new_incarnation(&mut *intake.pool.acquire().await?).await?;
                (Position { incarnation, next_offset: seen.low }, true)
            }
        };
        if is_new {
            begun.push((asked.partition, before.cloned(), position.clone()));
        } else if seen.marked != Offset::Offset(position.next_offset) {
            marks.push((asked.partition, position.clone()));
        }
        let behind = (seen.high - position.next_offset).max(0);
        let had_life = before.is_some();
        found.push(Found { asked, position, is_new, had_life, behind, is_placed: false });
    }
    begin(&client, &intake, begun, lost).await?;
    if let Err(error) = mark(&client, marks).await {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "positions are not marked in Kafka this time"
        );
    }
    place(&client, &mut found).await?;
    let is_heard = |found: &&Found| {
        let Asked { is_read, is_stuck, .. } = found.asked;
        is_read && !is_stuck && !found.is_new && found.behind <= HEARD_BEHIND
    };
    let heard: Vec<String> =
        found.iter().filter(is_heard).map(|found| found.asked.partition.to_string()).collect();
    hearing::note(&mut *intake.pool.acquire().await?, &heard, intake.clock.now()).await?;
    Ok(found)
}

/// Puts the client where reading begins.
async fn place(client: &Arc<Client>, found: &mut [Found]) -> Result<(), UpkeepError> {
    let unread: Vec<&mut Found> = found.iter_mut().filter(|found| !found.asked.is_read).collect();
    if unread.is_empty() {
        return Ok(());
    }
    let goals: Vec<(Partition, i64)> =
        unread.iter().map(|found| (found.asked.partition, found.position.next_offset)).collect();
    let placed = blocking(client, move |client| {
        let mut list = TopicPartitionList::with_capacity(goals.len());
        for (partition, offset) in goals {
            list.add_partition_offset(partition.topic, partition.number, Offset::Offset(offset))?;
        }
        let list = client.seek_partitions(list, ANSWER_TIMEOUT)?;
        // What was taken from us meanwhile says so here.
        let placed = list.elements().into_iter().filter(|entry| entry.error().is_ok());
        Ok(placed.filter_map(|entry| Partition::of(entry.topic(), entry.partition())).collect::<HashSet<_>>())
    })
    .await?;
    for found in unread {
        found.is_placed = placed.contains(&found.asked.partition);
    }
    Ok(())
}

/// Begins new lives. The mark comes first: were it missing afterwards, the life would begin once more.
async fn begin(
    client: &Arc<Client>,
    intake: &Intake,
    begun: Vec<(Partition, Option<Position>, Position)>,
    lost: bool,
) -> Result<(), UpkeepError> {
    if begun.is_empty() {
        return Ok(());
    }
    mark(client, begun.iter().map(|(partition, _, position)| (*partition, position.clone())).collect())
        .await?;
    let mut transaction = intake.pool.begin().await?;
    for (partition, before, position) in &begun {
        let now = intake.clock.now();
        if !offsets::restart(&mut transaction, *partition, before.as_ref(), position, now).await? {
            return Err(UpkeepError::Moved);
        }
        hearing::forget(&mut transaction, Some(partition.topic)).await?;
    }
    if lost {
        let generation = offsets::next_generation(&mut transaction).await?;
        tracing::warn!(generation, "Kafka may have lost records; senders send again what the ledger lacks");
    }
    transaction.commit().await?;
    Ok(())
}

async fn mark(client: &Arc<Client>, marks: Vec<(Partition, Position)>) -> Result<(), UpkeepError> {
    if marks.is_empty() {
        return Ok(());
    }
    blocking(client, move |client| {
        let mut list = TopicPartitionList::with_capacity(marks.len());
        for (partition, position) in &marks {
            let mut entry = list.add_partition(partition.topic, partition.number);
            entry.set_offset(Offset::Offset(position.next_offset))?;
            entry.set_metadata(&*position.incarnation);
        }
        client.commit(&list, CommitMode::Sync)
    })
    .await
}

async fn ask(client: &Arc<Client>, partitions: &[Partition]) -> Result<Vec<Seen>, UpkeepError> {
    let partitions = partitions.to_vec();
    blocking(client, move |client| {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in &partitions {
            list.add_partition(partition.topic, partition.number);
        }
        let committed = client.committed_offsets(list, ANSWER_TIMEOUT)?;
        let mut marks: HashMap<Partition, (String, Offset)> = HashMap::new();
        for entry in committed.elements() {
            entry.error()?;
            if let Some(partition) = Partition::of(entry.topic(), entry.partition()) {
                marks.insert(partition, (entry.metadata().to_owned(), entry.offset()));
            }
        }
        let mut seen = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let (low, high) = client.fetch_watermarks(partition.topic, partition.number, ANSWER_TIMEOUT)?;
            let (mark, marked) = marks.remove(&partition).unwrap_or((String::new(), Offset::Invalid));
            seen.push(Seen { mark, marked, low, high });
        }
        Ok(seen)
    })
    .await
}

/// The client's questions block their thread.
async fn blocking<T: Send + 'static>(
    client: &Arc<Client>,
    question: impl FnOnce(&Client) -> KafkaResult<T> + Send + 'static,
) -> Result<T, UpkeepError> {
    let client = Arc::clone(client);
    let answer = tokio::task::spawn_blocking(move || question(&client)).await;
    Ok(answer.map_err(|_| UpkeepError::CutShort)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_ends_with_its_mark_or_when_its_records_are_gone() {
        let stored = |next_offset| Position { incarnation: "life".into(), next_offset };
        let seen = |mark: &str| Seen { mark: mark.to_owned(), marked: Offset::Invalid, low: 10, high: 20 };
        let is_lost = |stored: Option<Position>, seen: &Seen| match judge(stored.as_ref(), seen) {
            Life::Goes => None,
            Life::Begins { lost, .. } => Some(lost),
        };
        for next_offset in [10, 15, 20] {
            assert_eq!(is_lost(Some(stored(next_offset)), &seen("life")), None);
        }
        assert_eq!(is_lost(Some(stored(9)), &seen("life")), Some(true));
        assert_eq!(is_lost(Some(stored(21)), &seen("life")), Some(true));
        assert_eq!(is_lost(Some(stored(15)), &seen("other")), Some(true));
        assert_eq!(is_lost(Some(stored(15)), &seen("")), Some(true));
        assert_eq!(is_lost(None, &seen("life")), Some(true));
        assert_eq!(is_lost(None, &Seen { low: 0, ..seen("") }), Some(false));
    }
}
