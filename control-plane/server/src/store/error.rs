//! Why a store operation failed, classified near the cause. SQL and values reach neither text nor client.

use sqlx::error::DatabaseError;
use weir_domain::event::DecodeError;
use weir_domain::refusal::Refusal;
use weir_schemas::error_class::ErrorClass;

/// A failed store operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The aggregate refuses the command.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The aggregate is not at the version that the caller has seen.
    #[error("the resource is at version {actual}, not {expected}")]
    Version {
        /// What the caller has seen.
        expected: u64,
        /// What is stored.
        actual: u64,
    },
    /// A rule across aggregates does not hold.
    #[error("{}", .0.text)]
    Constraint(&'static Constraint),
    /// The same Idempotency-Key came with another request.
    #[error("this Idempotency-Key was used for another request")]
    KeyReused,
    /// Postgres is away or too busy.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// Postgres refuses what should be right, or holds what should not be there.
    #[error("the database refused an operation")]
    Database(#[source] sqlx::Error),
    /// The log holds an event that this program does not understand.
    #[error("the event log cannot be read")]
    Decode(#[from] DecodeError),
    /// A read model holds a value that no event wrote.
    #[error("a read model holds an unexpected {what}")]
    Corrupt {
        /// Which value.
        what: &'static str,
    },
}

/// A named constraint of the schema and what breaking it means to the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constraint {
    name: &'static str,
    class: ErrorClass,
    text: &'static str,
}

const fn taken(name: &'static str, text: &'static str) -> Constraint {
    Constraint { name, class: ErrorClass::Conflict, text }
}

const fn missing(name: &'static str, text: &'static str) -> Constraint {
    Constraint { name, class: ErrorClass::Invalid, text }
}

static CONSTRAINTS: [Constraint; 11] = [
    taken("tenants_name", "a tenant of this name exists"),
    taken("models_name", "a model of this name exists"),
    taken("aliases_name", "an alias of this name exists"),
    taken("price_books_name", "a price book of this name exists"),
    taken("deployments_pool_version", "this pool serves this version already"),
    taken("price_versions_one_book", "this version is priced in another price book"),
    taken("events_stream_version", "the resource was changed at the same time"),
    missing("versions_model", "model_id names a model that does not exist"),
    missing("alias_targets_version", "targets name a version that does not exist"),
    missing("deployments_version", "version_id names a version that does not exist"),
    missing("priced_versions_version", "version_id names a version that does not exist"),
];

impl StoreError {
    /// Whose fault it is and what the caller may do.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Refused(refusal) => refusal.class(),
            Self::Version { .. } | Self::KeyReused => ErrorClass::Conflict,
            Self::Constraint(constraint) => constraint.class,
            Self::Unavailable(_) => ErrorClass::Unavailable,
            Self::Database(_) | Self::Decode(_) | Self::Corrupt { .. } => ErrorClass::Internal,
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let named = |found: &dyn DatabaseError| {
            let name = found.constraint()?;
            CONSTRAINTS.iter().find(|constraint| constraint.name == name)
        };
        if let sqlx::Error::Database(found) = &error
            && let Some(constraint) = named(found.as_ref())
        {
            return Self::Constraint(constraint);
        }
        if is_outage(&error) { Self::Unavailable(error) } else { Self::Database(error) }
    }
}

/// Whether waiting may help at the start: an outage, or a database or account that is not made yet.
pub(crate) fn may_pass(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    is_outage(error) || code.is_some_and(|code| code == "3D000" || code.starts_with("28"))
}

/// Whether waiting may help: no connection, a connection lost, a lock or statement that took too long, a server
/// that starts or stops (SQLSTATE classes 08, 53, 57 and lock_not_available).
fn is_outage(error: &sqlx::Error) -> bool {
    #[expect(clippy::wildcard_enum_match_arm, reason = "sqlx's enum is open")]
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            code.starts_with("08") || code.starts_with("53") || code.starts_with("57") || code == "55P03"
        }),
        _ => false,
    }
}
