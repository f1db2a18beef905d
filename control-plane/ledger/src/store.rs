//! Everything that touches Postgres: one file a table, one statement a batch.

pub(crate) mod charges;
pub(crate) mod dead_letters;
pub(crate) mod executions;
pub(crate) mod goodput;
pub(crate) mod hearing;
pub(crate) mod idempotency;
pub(crate) mod json;
pub(crate) mod offsets;
pub(crate) mod orphans;
pub(crate) mod outbox;
pub(crate) mod rejections;
pub(crate) mod senders;

use std::time::Duration;

use sqlx::PgPool;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

pub use sqlx::migrate::MigrateError;

/// How long a batch waits for a connection before its sender is told to come back.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// A batch takes milliseconds; one that waits longer for another's roll-up rows is rolled back and sent again.
const STATEMENT_TIMEOUT: &str = "10s";
/// A transaction that its process has forgotten must not hold its rows.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "10s";

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// A pool that connects when first used; Postgres may be away.
pub fn connect(options: PgConnectOptions, max_connections: u32) -> PgPool {
    let options = options.application_name("weir-ledger").options([
        ("statement_timeout", STATEMENT_TIMEOUT),
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
        ("timezone", "UTC"),
        // Compiling the charge statement takes longer than running it.
        ("jit", "off"),
    ]);
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options)
}

/// Brings the schema up to date; the control plane runs the same migrations, whoever comes first.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    MIGRATIONS.run(pool).await
}

/// What an error of Postgres means for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A value in the batch cannot be stored: trying again changes nothing.
    Poisoned,
    /// Two transactions were in each other's way: trying again at once is right.
    Collided,
    /// Postgres is away or unwell: the sender tries again later.
    Away,
}

/// Judges by SQLSTATE class: 22 and 23 are about values, 54 about their size, 40 about concurrent transactions.
pub(crate) fn verdict(error: &sqlx::Error) -> Verdict {
    let code = error.as_database_error().and_then(|error| error.code());
    match code.as_deref().map(|code| code.get(..2).unwrap_or_default()) {
        Some("22" | "23" | "54") => Verdict::Poisoned,
        Some("40") => Verdict::Collided,
        _ => Verdict::Away,
    }
}

/// Labels are part of keys, whose length Postgres limits.
const MAX_LABEL_CHARS: usize = 256;

/// A label as a column's value: Postgres' text has no NUL, its keys no great length. The untouched value stays in
/// the stored record.
pub(crate) fn text(value: &str) -> String {
    value.chars().take(MAX_LABEL_CHARS).map(|char| if char == '\0' { '\u{FFFD}' } else { char }).collect()
}

/// A count that was checked when the record was read.
pub(crate) fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The name an enum has on the wire.
pub(crate) fn wire_name(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(_) | Err(_) => String::new(),
    }
}
