//! How far each partition of the record topics has been taken, and of which life of its topic.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use weir_schemas::kafka::Topic;

/// A partition of a record topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Partition {
    pub(crate) topic: &'static str,
    pub(crate) number: i32,
}

impl Partition {
    /// `None` for a topic that is not one of records.
    pub(crate) fn of(topic: &str, number: i32) -> Option<Self> {
        let topic = Topic::RECORDS.into_iter().map(Topic::name).find(|name| *name == topic)?;
        Some(Self { topic, number })
    }
}

impl std::fmt::Display for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// Where reading goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// The life of the topic: a UUID.
    pub(crate) incarnation: Arc<str>,
    /// The first offset that was not taken.
    pub(crate) next_offset: i64,
}

/// What a batch took of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) partition: Partition,
    /// As it was when the batch was read.
    pub(crate) from: Position,
    /// The first offset behind the batch.
    pub(crate) to_offset: i64,
}

/// The stored positions of these partitions.
pub(crate) async fn positions(
    connection: &mut PgConnection,
    partitions: &[Partition],
) -> Result<HashMap<Partition, Position>, sqlx::Error> {
    let (topics, numbers) = columns(partitions.iter());
    let rows: Vec<(i64, String, i64)> = sqlx::query_as(
        "SELECT rank, incarnation, next_offset
         FROM unnest($1::text[], $2::integer[]) WITH ORDINALITY AS t(topic, partition, rank)
         JOIN ledger_offsets USING (topic, partition)",
    )
    .bind(topics)
    .bind(numbers)
    .fetch_all(connection)
    .await?;
    let position = |(rank, incarnation, next_offset): (i64, String, i64)| {
        let index = usize::try_from(rank).ok()?.checked_sub(1)?;
        Some((*partitions.get(index)?, Position { incarnation: incarnation.into(), next_offset }))
    };
    Ok(rows.into_iter().filter_map(position).collect())
}

/// Moves positions on, provided that each is still where the batch was read from; returns whether all were. Another
/// consumer's move in between means that it took these records.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    moves: &[Move],
    now: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    if moves.is_empty() {
        return Ok(true);
    }
    let (topics, numbers) = columns(moves.iter().map(|step| &step.partition));
    // In one order everywhere, so that two consumers never wait for each other in a circle.
    sqlx::query(
        "SELECT FROM ledger_offsets WHERE (topic, partition) IN (SELECT * FROM unnest($1::text[], $2::integer[]))
         ORDER BY topic, partition FOR UPDATE",
    )
    .bind(&topics)
    .bind(&numbers)
    .execute(&mut *connection)
    .await?;
    let moved = sqlx::query(
        "UPDATE ledger_offsets o SET next_offset = t.to_offset, moved_at = $1
         FROM unnest($2::text[], $3::integer[], $4::text[], $5::bigint[], $6::bigint[])
             AS t(topic, partition, incarnation, from_offset, to_offset)
         WHERE o.topic = t.topic AND o.partition = t.partition AND o.incarnation = t.incarnation
             AND o.next_offset = t.from_offset",
    )
    .bind(now)
    .bind(&topics)
    .bind(&numbers)
    .bind(moves.iter().map(|step| &*step.from.incarnation).collect::<Vec<_>>())
    .bind(moves.iter().map(|step| step.from.next_offset).collect::<Vec<_>>())
    .bind(moves.iter().map(|step| step.to_offset).collect::<Vec<_>>())
    .execute(connection)
    .await?
    .rows_affected();
    Ok(usize::try_from(moved) == Ok(moves.len()))
}

/// Starts a partition anew, provided that its stored position is still `before`; returns whether it was.
pub(crate) async fn restart(
    connection: &mut PgConnection,
    partition: Partition,
    before: Option<&Position>,
    position: &Position,
    now: DateTime<Utc>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "INSERT INTO ledger_offsets AS o (topic, partition, incarnation, next_offset, moved_at)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (topic, partition) DO UPDATE SET incarnation = excluded.incarnation,
             next_offset = excluded.next_offset, moved_at = excluded.moved_at
         WHERE o.incarnation = $6 AND o.next_offset = $7",
    )
    .bind(partition.topic)
    .bind(partition.number)
    .bind(&*position.incarnation)
    .bind(position.next_offset)
    .bind(now)
    .bind(before.map(|before| &*before.incarnation))
    .bind(before.map(|before| before.next_offset))
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A name for a new life of a topic.
pub(crate) async fn new_incarnation(connection: &mut PgConnection) -> Result<Arc<str>, sqlx::Error> {
    let name: String = sqlx::query_scalar("SELECT gen_random_uuid()::text").fetch_one(connection).await?;
    Ok(name.into())
}

/// Tells every sender to send again what is above its watermark.
pub(crate) async fn next_generation(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("UPDATE ledger_generation SET generation = generation + 1 RETURNING generation")
        .fetch_one(connection)
        .await
}

fn columns<'a>(partitions: impl Iterator<Item = &'a Partition>) -> (Vec<&'static str>, Vec<i32>) {
    partitions.map(|partition| (partition.topic, partition.number)).unzip()
}
