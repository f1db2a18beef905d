//! How far the event log has been relayed to its topic, and whose turn it is.

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};

use super::Store;
use super::error::StoreError;
use super::event_log::{self, EventRow};
use crate::scope::PlatformScope;

/// The advisory lock of the relay: "weir" in ASCII, and 2.
const RELAY_LOCK: i64 = 0x7765_6972_0000_0002;

/// What has been relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Relayed {
    /// Every event up to and including this position.
    pub(crate) position: i64,
    /// Where it lies in the topic, -1 for nowhere.
    pub(crate) topic_offset: i64,
}

impl Relayed {
    /// Nothing.
    pub(crate) const NONE: Self = Self { position: 0, topic_offset: -1 };
}

/// A turn at relaying: of all control planes one has it, until it ends or its connection does.
#[derive(Debug)]
pub(crate) struct RelayTurn {
    transaction: Transaction<'static, Postgres>,
    /// As of the turn before.
    pub(crate) relayed: Relayed,
}

impl Store {
    /// The turn, unless another has it.
    pub(crate) async fn relay_turn(&self, scope: PlatformScope) -> Result<Option<RelayTurn>, StoreError> {
        let mut transaction = self.read(scope).await?;
        let is_ours: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
            .bind(RELAY_LOCK)
            .fetch_one(&mut *transaction)
            .await?;
        if !is_ours {
            return Ok(None);
        }
        let relayed = sqlx::query_as("SELECT position, topic_offset FROM event_relay")
            .fetch_optional(&mut *transaction)
            .await?;
        Ok(Some(RelayTurn { transaction, relayed: relayed.unwrap_or(Relayed::NONE) }))
    }
}

impl RelayTurn {
    /// The events behind a position, as they are stored.
    pub(crate) async fn events(&mut self, after: i64, limit: i64) -> Result<Vec<EventRow>, StoreError> {
        event_log::rows(&mut self.transaction, after, limit).await
    }

    /// Ends the turn with what has been relayed.
    pub(crate) async fn end(mut self, relayed: Relayed, now: DateTime<Utc>) -> Result<(), StoreError> {
        if relayed != self.relayed {
            sqlx::query(
                "INSERT INTO event_relay (position, topic_offset, relayed_at) VALUES ($1, $2, $3)
                 ON CONFLICT (singleton) DO UPDATE SET position = excluded.position,
                     topic_offset = excluded.topic_offset, relayed_at = excluded.relayed_at",
            )
            .bind(relayed.position)
            .bind(relayed.topic_offset)
            .bind(now)
            .execute(&mut *self.transaction)
            .await?;
        }
        self.transaction.commit().await?;
        Ok(())
    }
}
