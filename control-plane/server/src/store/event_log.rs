//! The `events` table: append, replay of one aggregate as of now or any past moment, the audit list.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{FromRow, PgConnection};
use weir_domain::aggregate::Aggregate;
use weir_domain::envelope::EventEnvelope;
use weir_domain::event::{Event, StoredForm};

use super::error::StoreError;
use super::upcast::upcast;
use super::{Store, page};
use crate::scope::{PlatformScope, ReadScope};

/// Which moment of the log a reader means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AsOf {
    /// The last committed one.
    Now,
    /// After the event at this position.
    Position(u64),
    /// After the last event recorded not later than this.
    Time(DateTime<Utc>),
}

/// A stored event as the table holds it.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct EventRow {
    pub(crate) position: i64,
    pub(crate) stream: String,
    pub(crate) version: i64,
    pub(crate) event_type: String,
    pub(crate) data: Value,
    pub(crate) actor: String,
    pub(crate) recorded_at: DateTime<Utc>,
}

const COLUMNS: &str = "position, stream, version, event_type, data, actor, recorded_at";

impl EventRow {
    pub(super) fn decode(self) -> Result<EventEnvelope<Event>, StoreError> {
        let stored = upcast(StoredForm { event_type: self.event_type, data: self.data });
        Ok(EventEnvelope {
            position: page::unsigned(self.position, "position")?,
            stream: self.stream,
            version: page::unsigned(self.version, "version")?,
            actor: self.actor,
            recorded_at: self.recorded_at,
            event: Event::decode(stored)?,
        })
    }
}

/// The position of the last event, 0 for an empty log.
pub(super) async fn last_position(connection: &mut PgConnection) -> Result<u64, StoreError> {
    let position: i64 =
        sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM events").fetch_one(connection).await?;
    page::unsigned(position, "position")
}

pub(super) async fn insert(
    connection: &mut PgConnection,
    envelope: &EventEnvelope<Event>,
) -> Result<(), StoreError> {
    let stored = envelope.event.encode();
    sqlx::query(&format!("INSERT INTO events ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)"))
        .bind(page::signed(envelope.position))
        .bind(&envelope.stream)
        .bind(page::signed(envelope.version))
        .bind(stored.event_type)
        .bind(stored.data)
        .bind(&envelope.actor)
        .bind(envelope.recorded_at)
        .execute(connection)
        .await?;
    Ok(())
}

/// The aggregate's state and version, replayed; version 0 if it never was.
pub(super) async fn load<A: Aggregate>(
    connection: &mut PgConnection,
    stream: &str,
    as_of: AsOf,
) -> Result<(Option<A>, u64), StoreError> {
    let (position, time) = match as_of {
        AsOf::Now => (None, None),
        AsOf::Position(position) => (Some(page::signed(position)), None),
        AsOf::Time(time) => (None, Some(time)),
    };
    let rows: Vec<EventRow> = sqlx::query_as(&format!(
        "SELECT {COLUMNS} FROM events WHERE stream = $1 AND ($2::bigint IS NULL OR position <= $2)
         AND ($3::timestamptz IS NULL OR recorded_at <= $3) ORDER BY version"
    ))
    .bind(stream)
    .bind(position)
    .bind(time)
    .fetch_all(connection)
    .await?;
    let (mut state, mut version) = (None, 0);
    for row in rows {
        let envelope = row.decode()?;
        version = envelope.version;
        let event = A::Event::try_from(envelope.event)
            .map_err(|_| StoreError::Corrupt { what: "event in a stream" })?;
        state = A::evolve(state, &event);
    }
    Ok((state, version))
}

/// A batch of events after `position`, in order; for replays.
pub(super) async fn batch(
    connection: &mut PgConnection,
    after: u64,
    limit: i64,
) -> Result<Vec<EventEnvelope<Event>>, StoreError> {
    let rows = rows(connection, page::signed(after), limit).await?;
    rows.into_iter().map(EventRow::decode).collect()
}

/// The same as they are stored.
pub(super) async fn rows(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
) -> Result<Vec<EventRow>, StoreError> {
    let rows = sqlx::query_as(&format!(
        "SELECT {COLUMNS} FROM events WHERE position > $1 ORDER BY position LIMIT $2"
    ))
    .bind(after)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

impl Store {
    /// An aggregate as of a moment, with its version; `None` if it was not there.
    pub(crate) async fn aggregate<A: Aggregate>(
        &self,
        scope: ReadScope,
        id: A::Id,
        as_of: AsOf,
    ) -> Result<Option<(A, u64)>, StoreError> {
        let mut transaction = self.read_scoped(scope).await?;
        let (state, version) = load::<A>(&mut transaction, &id.to_string(), as_of).await?;
        Ok(state.map(|state| (state, version)))
    }

    /// Events after a position, oldest first, of one stream or of all, as they are stored.
    pub(crate) async fn events(
        &self,
        scope: PlatformScope,
        stream: Option<&str>,
        after: u64,
        limit: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let rows = sqlx::query_as(&format!(
            "SELECT {COLUMNS} FROM events WHERE position > $1 AND ($2::text IS NULL OR stream = $2)
             ORDER BY position LIMIT $3"
        ))
        .bind(page::signed(after))
        .bind(stream)
        .bind(limit)
        .fetch_all(&mut *transaction)
        .await?;
        Ok(rows)
    }
}
