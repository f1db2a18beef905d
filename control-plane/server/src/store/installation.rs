//! The installation's epoch: grows when the database was restored, so that nodes which hold a later position than
//! the log has do not take the past for the present.

use chrono::{DateTime, Utc};
use weir_schemas::config_snapshot::Revision;

use super::Store;
use super::error::StoreError;
use super::page::{signed, unsigned};
use crate::scope::PlatformScope;

impl Store {
    /// Notes the installation at its first start. Its epoch begins at the time in seconds, so that a database made
    /// anew has a later one than any before it.
    pub(crate) async fn install(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO installation (epoch, created_at) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(now.timestamp())
            .bind(now)
            .execute(self.pool()?)
            .await?;
        Ok(())
    }

    /// What a config published now would include.
    pub(crate) async fn revision(&self, _: PlatformScope) -> Result<Revision, StoreError> {
        let (epoch, position): (i64, i64) =
            sqlx::query_as("SELECT epoch, (SELECT coalesce(max(position), 0) FROM events) FROM installation")
                .fetch_one(self.pool()?)
                .await?;
        Ok(Revision { epoch: unsigned(epoch, "epoch")?, position: unsigned(position, "position")? })
    }

    /// Begins a new epoch if a node holds a later revision than the log can have given it: the database was
    /// restored from before that. Returns whether it did.
    pub(crate) async fn outgrow(&self, held: Revision, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut write = self.begin("system", now).await?;
        let updated = sqlx::query(
            "UPDATE installation SET epoch = $1 + 1 WHERE epoch < $1
             OR (epoch = $1 AND $2 > (SELECT coalesce(max(position), 0) FROM events))",
        )
        .bind(signed(held.epoch))
        .bind(signed(held.position))
        .execute(write.connection())
        .await?;
        write.commit().await?;
        Ok(updated.rows_affected() > 0)
    }
}
