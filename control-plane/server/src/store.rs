//! Everything that touches Postgres: the event log, the read models projected from it, and the reads.
//!
//! A write goes through [`WriteTransaction`] and nothing else. A read runs either on the whole platform or, with a
//! [`TenantScope`], as the role `weir_tenant` behind row-level security.

pub(crate) mod aliases;
pub(crate) mod config;
pub(crate) mod deployments;
pub(crate) mod error;
pub(crate) mod event_log;
pub(crate) mod event_relay;
pub(crate) mod idempotency;
pub(crate) mod installation;
pub(crate) mod keys;
pub(crate) mod models;
pub(crate) mod nodes;
pub(crate) mod page;
pub(crate) mod price_books;
mod projections;
mod pulse;
pub(crate) mod rebuild;
pub(crate) mod signing_keys;
pub(crate) mod tenants;
mod transaction;
mod upcast;
pub(crate) mod usage;
pub(crate) mod versions;

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Transaction};
use tokio::sync::watch;

pub(crate) use error::{StoreError, may_pass};
pub(crate) use transaction::{Changed, WriteTransaction};

use crate::scope::{PlatformScope, ReadScope, TenantScope};

/// More would only queue inside Postgres: writes are serial by the log's lock, reads are short.
const CONNECTIONS_MAX: u32 = 16;
/// How long a request waits for a connection before it is told to come back. A new one takes seconds where the machine
/// is busy; with the longest statement this stays within 15 s.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest single statement, and longest wait for the log's lock, as Postgres writes durations.
const STATEMENT_TIMEOUT: &str = "10s";
const LOCK_TIMEOUT: &str = "3s";
/// A transaction that its process has forgotten must not hold the log's lock.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "10s";

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

/// The connection pool and what hangs on it; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pool: PgPool,
    lock_hold_seconds: Histogram,
    committed: watch::Sender<u64>,
    /// Why Postgres is not there, once that is known.
    away: watch::Sender<Option<String>>,
}

impl Store {
    /// A pool that connects when first used; Postgres may be away.
    pub(crate) fn new(options: PgConnectOptions, lock_hold_seconds: Histogram) -> Self {
        let options = options.application_name("weir-control-plane").options([
            ("statement_timeout", STATEMENT_TIMEOUT),
            ("lock_timeout", LOCK_TIMEOUT),
            ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
        ]);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options);
        Self { pool, lock_hold_seconds, committed: watch::Sender::new(0), away: watch::Sender::new(None) }
    }

    /// Finds out whether Postgres is there, for as long as it is polled; without it requests wait for themselves.
    pub(crate) fn keep_pulse(&self) -> impl Future<Output = ()> + Send + 'static {
        pulse::keep((*self.pool.connect_options()).clone(), self.away.clone())
    }

    /// The pool, unless Postgres is known to be away.
    fn pool(&self) -> Result<&PgPool, StoreError> {
        match &*self.away.borrow() {
            None => Ok(&self.pool),
            Some(reason) => {
                let reason = std::io::Error::new(std::io::ErrorKind::NotConnected, reason.clone());
                Err(StoreError::Unavailable(sqlx::Error::Io(reason)))
            }
        }
    }

    /// Brings the schema up to date.
    pub(crate) async fn migrate(&self) -> Result<(), sqlx::migrate::MigrateError> {
        MIGRATIONS.run(&self.pool).await
    }

    /// The position of the last event that this process committed; for the publisher, which need not poll for it.
    pub(crate) fn committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }

    /// Whether Postgres answers.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.pool()?).await?;
        Ok(())
    }

    /// Why Postgres is known not to be there.
    pub(crate) fn away(&self) -> Option<String> {
        self.away.borrow().clone()
    }

    /// Closes every connection.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// A read on the whole platform.
    async fn read(&self, _: PlatformScope) -> Result<Transaction<'static, Postgres>, StoreError> {
        Ok(self.pool()?.begin().await?)
    }

    /// A read on one tenant, as the role that row-level security holds for.
    async fn read_as(&self, scope: TenantScope) -> Result<Transaction<'static, Postgres>, StoreError> {
        let mut transaction = self.pool()?.begin().await?;
        // `set_config(…, true)` is SET LOCAL: both end with the transaction.
        sqlx::query("SELECT set_config('weir.tenant_id', $1, true), set_config('role', 'weir_tenant', true)")
            .bind(scope.tenant().to_string())
            .execute(&mut *transaction)
            .await?;
        Ok(transaction)
    }

    async fn read_scoped(&self, scope: ReadScope) -> Result<Transaction<'static, Postgres>, StoreError> {
        match scope {
            ReadScope::Platform(scope) => self.read(scope).await,
            ReadScope::Tenant(scope) => self.read_as(scope).await,
        }
    }
}

#[cfg(test)]
mod tests;
