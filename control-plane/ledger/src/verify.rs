//! Verification: sender sequences, charges, execution records and roll-ups against each other. Zero findings is the
//! normal answer; whatever is not zero is listed. It reads, in one snapshot, and never writes.
//!
//! Each file here holds the comparisons of one kind: whether every accepted number has its row and every row its
//! number (`sequences`), whether rows say what their records say (`rows`), what money they give (`prices`), what
//! workers counted (`executions`), and what was added up (`roll_ups`).

mod dead_letters;
mod executions;
mod findings;
mod prices;
mod roll_ups;
mod rows;
mod sequences;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use sqlx::{PgConnection, PgPool};

pub use findings::{Difference, Findings, SequenceGap};

/// How long after a request's end its records may be on their way: relays send within a second, a cancelled sequence
/// may take ten to be counted, and a busy ledger some more.
pub const SETTLING: TimeDelta = TimeDelta::seconds(60);
/// A whole ledger takes longer than a batch.
const STATEMENT_TIMEOUT: &str = "SET LOCAL statement_timeout = '30min'";

/// What is looked at: requests received at or after `from` and over before `to`; roll-ups of the minutes between.
/// Sequences, and records kept aside, are looked at whole, as far as they had come before `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Range {
    /// First moment included.
    pub from: DateTime<Utc>,
    /// First moment not included. At least [`SETTLING`] ago, or records on their way are listed as missing.
    pub to: DateTime<Utc>,
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct Counts {
    /// Requests charged, at nothing or something.
    pub charges: i64,
    /// Attempts that workers recorded.
    pub executions: i64,
    /// Requests that wait for a price.
    pub unpriced: i64,
    /// Charges that a gateway closed from its last progress after a crash.
    pub recovered_charges: i64,
    /// Executions that a worker closed so.
    pub recovered_executions: i64,
    /// Requests first charged from executions, because their gateway was gone.
    pub from_executions: i64,
    /// Rows that correct a charge.
    pub corrections: i64,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// How much was looked at.
    pub counts: Counts,
    /// Numbers missing in a sender's sequence.
    pub gaps: Findings<SequenceGap>,
    /// Records that came twice under different numbers, and rows without a record.
    pub duplicates: Findings<Difference>,
    /// Charges against executions, rows against the records they came from, roll-ups against rows.
    pub differences: Findings<Difference>,
    /// Charges against executions where either side was closed from what was last known of it, within what that may
    /// cost: the gateway's charge stands.
    pub recovered: Findings<Difference>,
    /// Records kept aside and not decided on.
    pub dead_letters: Findings<Difference>,
}

impl VerifyReport {
    /// Nothing is missing, double or different, and nothing waits for a decision.
    pub fn is_clean(&self) -> bool {
        let Self { counts: _, gaps, duplicates, differences, recovered: _, dead_letters } = self;
        gaps.is_empty() && duplicates.is_empty() && differences.is_empty() && dead_letters.is_empty()
    }
}

/// Compares everything in one snapshot of the database.
pub async fn verify(pool: &PgPool, range: Range) -> Result<VerifyReport, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .execute(&mut *transaction)
        .await?;
    sqlx::query(STATEMENT_TIMEOUT).execute(&mut *transaction).await?;
    let connection = &mut *transaction;
    let mut duplicates = dead_letters::duplicates(connection, range).await?;
    duplicates.append(sequences::rows_without_record(connection, range).await?);
    let mut differences = sequences::rows_missing(connection, range).await?;
    differences.append(sequences::watermarks(connection, range).await?);
    differences.append(rows::charges(connection, range).await?);
    differences.append(rows::executions(connection, range).await?);
    differences.append(rows::unpriced(connection, range).await?);
    differences.append(prices::amounts(connection, range).await?);
    differences.append(prices::prices(connection, range).await?);
    differences.append(roll_ups::usage(connection, range).await?);
    differences.append(roll_ups::amounts(connection, range).await?);
    differences.append(roll_ups::goodput(connection, range).await?);
    let (differing, recovered) = executions::compare(connection, range).await?;
    differences.append(differing);
    Ok(VerifyReport {
        counts: counts(connection, range).await?,
        gaps: sequences::gaps(connection, range).await?,
        duplicates,
        differences,
        recovered,
        dead_letters: dead_letters::undecided(connection, range).await?,
    })
}

async fn counts(connection: &mut PgConnection, range: Range) -> Result<Counts, sqlx::Error> {
    sqlx::query_as(
        "SELECT c.*, e.*, (SELECT count(*) FROM ledger_unpriced WHERE received_at >= $1 AND received_at < $2) AS unpriced
         FROM (SELECT count(*) FILTER (WHERE entry = 0) AS charges,
                   count(*) FILTER (WHERE recovered AND reason <> 'execution' AND requests >= 0) AS recovered_charges,
                   count(*) FILTER (WHERE entry = 0 AND reason = 'execution') AS from_executions,
                   count(*) FILTER (WHERE entry > 0) AS corrections
               FROM ledger_charges WHERE received_at >= $1 AND finished_at < $2) c,
              (SELECT count(*) AS executions, count(*) FILTER (WHERE recovered) AS recovered_executions
               FROM ledger_executions WHERE started_at >= $1 AND finished_at < $2) e",
    )
    .bind(range.from)
    .bind(range.to)
    .fetch_one(connection)
    .await
}
