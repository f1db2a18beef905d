//! What operators do about records kept aside: list them, have one read again as if it had arrived now, or write it
//! off. A decision is a row of its own, made once; the letter never changes.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgPool;
use weir_schemas::clock::Clock;

use crate::batch;
use crate::incoming::{Content, Received};
use crate::store::dead_letters::{self, Decision};
use crate::store::senders::{self, Claim};
use crate::store::{Verdict, text, verdict};

/// Claims the events of replayed letters, under the letters' own numbers: a record that comes again later is then a
/// duplicate, as after any first arrival. No sender's id looks like it.
const REPLAY: &str = "replay";

/// A record kept aside, and what was decided on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct DeadLetter {
    /// Its number among the dead letters.
    pub dead_letter: i64,
    /// Who sent it, with which number.
    pub sender: String,
    /// See `sender`.
    pub sequence: i64,
    /// The topic it came in.
    pub topic: String,
    /// Why it was kept aside: one word, and more.
    pub reason: String,
    /// See `reason`.
    pub detail: String,
    /// When it came.
    pub stored_at: DateTime<Utc>,
    /// Its bytes, as far as they are text.
    #[sqlx(try_from = "Vec<u8>")]
    pub payload: Payload,
    /// `replayed` or `written_off`, by whom and why.
    pub decision: Option<String>,
    /// See `decision`.
    pub decided_by: Option<String>,
    /// See `decision`.
    pub note: Option<String>,
    /// See `decision`.
    pub decided_at: Option<DateTime<Utc>>,
}

/// Bytes of a record that could not be read; shown as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Payload(String);

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Why a letter stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum DecisionError {
    /// No letter has this number.
    #[error("there is no dead letter {number}")]
    NotFound {
        /// As asked.
        number: i64,
    },
    /// A decision is made once.
    #[error("dead letter {number} was {decision} already")]
    Decided {
        /// As asked.
        number: i64,
        /// What was decided.
        decision: String,
    },
    /// This release reads it no better than the one that kept it aside.
    #[error("dead letter {number} is still {reason}: {detail}")]
    StillDead {
        /// As asked.
        number: i64,
        /// Why, in one word.
        reason: &'static str,
        /// What exactly.
        detail: String,
    },
    /// What it says is in the ledger; replaying it would say it twice.
    #[error("what dead letter {number} says is in the ledger already; it can only be written off")]
    KnownEvent {
        /// As asked.
        number: i64,
    },
    /// Postgres cannot store its values, or there is no price yet for what it corrects.
    #[error("Postgres refuses dead letter {number} (SQLSTATE {code})")]
    Refused {
        /// As asked.
        number: i64,
        /// The class of error.
        code: String,
    },
    /// Postgres is away or unwell.
    #[error("the ledger's database does not answer")]
    Postgres(#[source] sqlx::Error),
}

/// Letters with numbers above `after`, in order: those that nobody has decided on, or all.
pub async fn list(pool: &PgPool, all: bool, after: i64, limit: i64) -> Result<Vec<DeadLetter>, sqlx::Error> {
    dead_letters::list(&mut *pool.acquire().await?, all, after, limit).await
}

/// Reads a letter's bytes again and takes them as if they had arrived now, once.
pub async fn replay(pool: &PgPool, clock: &Clock, number: i64, by: &str) -> Result<(), DecisionError> {
    let refused = |error: sqlx::Error| match verdict(&error) {
        Verdict::Poisoned => {
            let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
            DecisionError::Refused { number, code: code.into_owned() }
        }
        Verdict::Collided | Verdict::Away => DecisionError::Postgres(error),
    };
    let mut transaction = pool.begin().await.map_err(DecisionError::Postgres)?;
    let connection = &mut *transaction;
    let letter = undecided(connection, number).await?;
    let record = Received::numbered(
        Arc::from(letter.sender),
        letter.sequence,
        letter.topic,
        letter.key,
        letter.payload,
    );
    if let Content::Dead(reason, detail) = &record.content {
        let (reason, detail) = (reason.as_str(), detail.clone());
        return Err(DecisionError::StillDead { number, reason, detail });
    }
    let claim =
        Claim { place: (REPLAY, number), event_id: record.event_id().map(text), topic: &record.topic };
    if senders::claim(connection, &[claim]).await.map_err(DecisionError::Postgres)?.is_empty() {
        return Err(DecisionError::KnownEvent { number });
    }
    let now = clock.now();
    batch::write(connection, now, &[&record]).await.map_err(refused)?;
    let decision = Decision { number, decision: "replayed", by, note: "" };
    dead_letters::decide(connection, &decision, now).await.map_err(DecisionError::Postgres)?;
    transaction.commit().await.map_err(refused)
}

/// Decides that a letter will never be charged.
pub async fn write_off(
    pool: &PgPool,
    clock: &Clock,
    number: i64,
    by: &str,
    why: &str,
) -> Result<(), DecisionError> {
    let mut transaction = pool.begin().await.map_err(DecisionError::Postgres)?;
    undecided(&mut transaction, number).await?;
    let decision = Decision { number, decision: "written_off", by, note: why };
    dead_letters::decide(&mut transaction, &decision, clock.now()).await.map_err(DecisionError::Postgres)?;
    transaction.commit().await.map_err(DecisionError::Postgres)
}

async fn undecided(
    connection: &mut sqlx::PgConnection,
    number: i64,
) -> Result<dead_letters::Kept, DecisionError> {
    let kept = dead_letters::lock(connection, number).await.map_err(DecisionError::Postgres)?;
    let kept = kept.ok_or(DecisionError::NotFound { number })?;
    match &kept.decision {
        Some(decision) => Err(DecisionError::Decided { number, decision: decision.clone() }),
        None => Ok(kept),
    }
}
