//! Empties every read model and refills it from the log, in one transaction: readers see the old rows or the new.

use super::error::StoreError;
use super::projections::{self, TABLES};
use super::{Store, event_log};
use chrono::{DateTime, Utc};

/// Events held in memory at a time.
const BATCH_EVENTS: i64 = 1_000;

impl Store {
    /// Rebuilds the read models; returns the number of events replayed.
    pub(crate) async fn rebuild(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        // The write lock keeps new events out until the refilled tables are in force.
        let mut write = self.begin("rebuild", now).await?;
        let connection = write.connection();
        sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *connection).await?;
        sqlx::query(&format!("TRUNCATE {}", TABLES.join(", "))).execute(&mut *connection).await?;
        let mut position = 0;
        loop {
            let events = event_log::batch(connection, position, BATCH_EVENTS).await?;
            let Some(last) = events.last() else { break };
            position = last.position;
            for event in &events {
                projections::apply(connection, event).await?;
            }
        }
        write.commit().await
    }
}
