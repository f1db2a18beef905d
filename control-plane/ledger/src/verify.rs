//! Verification: sender sequences, charges, execution records and roll-ups against each other. Zero findings is the
//! normal answer; whatever is not zero is listed.

mod checks;

use chrono::{DateTime, Utc};
use sqlx::PgPool;

/// Findings listed of each kind; the rest is of the same kind.
pub(crate) const MAX_LISTED: i64 = 1_000;

/// Requests received within these times; sequences and dead letters are checked whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First moment included.
    pub from: DateTime<Utc>,
    /// First moment not included. Later than the records on their way, or these are listed as missing.
    pub to: DateTime<Utc>,
}

/// Sequence numbers that a sender used and the ledger does not have.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct SequenceGap {
    /// Gateway or worker.
    pub sender: String,
    /// First missing number.
    pub first: i64,
    /// Last missing number.
    pub last: i64,
}

/// Two things that should be equal and are not.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Difference {
    /// Request id, or the roll-up's row.
    pub subject: String,
    /// What was compared.
    pub what: String,
    /// What one side says.
    pub left: String,
    /// What the other side says.
    pub right: String,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Charges in the range.
    pub charges: i64,
    /// Execution records in the range.
    pub executions: i64,
    /// Records in the range that wait for a price.
    pub unpriced: i64,
    /// Numbers missing in a sender's sequence.
    pub gaps: Vec<SequenceGap>,
    /// Records that came twice under different numbers, and charges without a record.
    pub duplicates: Vec<Difference>,
    /// Charges against executions, rows against the records they came from, roll-ups against rows.
    pub differences: Vec<Difference>,
    /// Charges against executions where either side closed from its last progress after a crash: the charge stands.
    pub recovered: Vec<Difference>,
    /// Records kept aside and not decided on.
    pub dead_letters: Vec<Difference>,
}

impl VerifyReport {
    /// Nothing is missing, double or different, and nothing waits for a decision.
    pub fn is_clean(&self) -> bool {
        let Self {
            charges: _,
            executions: _,
            unpriced: _,
            gaps,
            duplicates,
            differences,
            recovered: _,
            dead_letters,
        } = self;
        gaps.is_empty() && duplicates.is_empty() && differences.is_empty() && dead_letters.is_empty()
    }
}

/// Compares everything in one snapshot of the database.
pub async fn verify(pool: &PgPool, range: Range) -> Result<VerifyReport, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .execute(&mut *transaction)
        .await?;
    // A whole ledger takes longer than a batch.
    sqlx::query("SET LOCAL statement_timeout = '10min'").execute(&mut *transaction).await?;
    let connection = &mut *transaction;
    let (charges, executions, unpriced) = checks::counts(connection, range).await?;
    let mut duplicates = checks::duplicates(connection).await?;
    duplicates.extend(checks::charges_without_record(connection).await?);
    let mut differences = checks::rows_missing(connection).await?;
    differences.extend(checks::altered_charges(connection, range).await?);
    differences.extend(checks::roll_ups(connection, range).await?);
    let against_executions = checks::executions(connection, range).await?;
    let (recovered, exact): (Vec<_>, Vec<_>) =
        against_executions.into_iter().partition(|found| found.recovered);
    differences.extend(exact.into_iter().map(|found| found.difference));
    Ok(VerifyReport {
        charges,
        executions,
        unpriced,
        gaps: checks::gaps(connection).await?,
        duplicates,
        differences,
        recovered: recovered.into_iter().map(|found| found.difference).collect(),
        dead_letters: checks::dead_letters(connection).await?,
    })
}
