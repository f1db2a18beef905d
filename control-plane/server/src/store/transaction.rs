//! The one way to write: lock, decide on replayed state, append, project, commit.
//!
//! The first statement takes the transaction-scoped advisory lock, so positions are gapless and in commit order
//! and everything read afterwards is current; the lock's hold time is a metric.

use std::time::Instant;

use chrono::{DateTime, Utc};
use prometheus_client::metrics::histogram::Histogram;
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::sync::watch;
use weir_domain::aggregate::Aggregate;
use weir_domain::envelope::EventEnvelope;
use weir_domain::event::Event;

use super::error::StoreError;
use super::event_log::{self, AsOf};
use super::{Store, projections};

/// Key of the advisory lock: "weir" in ASCII.
const LOCK_KEY: i64 = 0x7765_6972;

/// An aggregate after a command.
#[derive(Debug)]
pub(crate) struct Changed<A> {
    /// Its state; `None` if the command ended it.
    pub(crate) state: Option<A>,
    /// Its version.
    pub(crate) version: u64,
}

/// An open write. Dropped without [`WriteTransaction::commit`], nothing has happened.
#[derive(Debug)]
pub(crate) struct WriteTransaction {
    transaction: Transaction<'static, Postgres>,
    lock: LockHeld,
    committed: watch::Sender<u64>,
    position: u64,
    actor: String,
    now: DateTime<Utc>,
}

/// Observes how long the lock was held, however the transaction ends.
#[derive(Debug)]
struct LockHeld {
    since: Instant,
    hold_seconds: Histogram,
}

impl Drop for LockHeld {
    fn drop(&mut self) {
        self.hold_seconds.observe(self.since.elapsed().as_secs_f64());
    }
}

impl Store {
    /// Begins a write by `actor` at `now`.
    pub(crate) async fn begin(
        &self,
        actor: impl Into<String>,
        now: DateTime<Utc>,
    ) -> Result<WriteTransaction, StoreError> {
        let mut transaction = self.pool()?.begin().await?;
        sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK_KEY).execute(&mut *transaction).await?;
        let lock = LockHeld { since: Instant::now(), hold_seconds: self.lock_hold_seconds.clone() };
        // A statement of its own: under READ COMMITTED it sees what was committed before the lock was granted.
        let position = event_log::last_position(&mut transaction).await?;
        let committed = self.committed.clone();
        Ok(WriteTransaction { transaction, lock, committed, position, actor: actor.into(), now })
    }
}

impl WriteTransaction {
    /// The time of the write, by which its events are recorded.
    pub(crate) const fn now(&self) -> DateTime<Utc> {
        self.now
    }

    /// The connection, for reads that the decision depends on.
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Lets the aggregate decide on `command`, appends what it decides and projects it. With `expected`, only if
    /// the aggregate is at that version.
    pub(crate) async fn execute<A: Aggregate>(
        &mut self,
        id: A::Id,
        expected: Option<u64>,
        command: A::Command,
    ) -> Result<Changed<A>, StoreError> {
        let stream = id.to_string();
        let (mut state, mut version) =
            event_log::load::<A>(&mut self.transaction, &stream, AsOf::Now).await?;
        if let (Some(expected), Some(_)) = (expected, &state)
            && expected != version
        {
            return Err(StoreError::Version { expected, actual: version });
        }
        for event in A::decide(state.as_ref(), command)? {
            state = A::evolve(state, &event);
            version += 1;
            self.append(&stream, version, event.into()).await?;
        }
        Ok(Changed { state, version })
    }

    /// An aggregate as this write sees it, with its version.
    pub(crate) async fn aggregate<A: Aggregate>(
        &mut self,
        id: A::Id,
    ) -> Result<Option<(A, u64)>, StoreError> {
        let (state, version) =
            event_log::load::<A>(&mut self.transaction, &id.to_string(), AsOf::Now).await?;
        Ok(state.map(|state| (state, version)))
    }

    /// Makes it durable and tells whoever waits; returns the position of the last event.
    pub(crate) async fn commit(self) -> Result<u64, StoreError> {
        let Self { transaction, lock, committed, position, .. } = self;
        transaction.commit().await?;
        drop(lock);
        committed.send_replace(position);
        Ok(position)
    }

    async fn append(&mut self, stream: &str, version: u64, event: Event) -> Result<(), StoreError> {
        self.position += 1;
        let envelope = EventEnvelope {
            position: self.position,
            stream: stream.to_owned(),
            version,
            actor: self.actor.clone(),
            recorded_at: self.now,
            event,
        };
        event_log::insert(&mut self.transaction, &envelope).await?;
        projections::apply(&mut self.transaction, &envelope).await
    }
}
