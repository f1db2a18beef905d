//! What a comparison found: how often in all, and the first of them.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection};

use super::Range;

/// Findings listed of each comparison; the rest is of the same kind, and counted.
pub(crate) const MAX_LISTED: i64 = 1_000;

/// Sequence numbers that a sender used and the ledger does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
pub struct SequenceGap {
    /// Gateway or worker.
    pub sender: String,
    /// First missing number.
    pub first: i64,
    /// Last missing number.
    pub last: i64,
}

/// Two things that should be equal and are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, FromRow)]
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

/// An exact total and a bounded list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Findings<T> {
    /// How many there are.
    pub total: i64,
    /// The first of them.
    pub listed: Vec<T>,
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { total: 0, listed: Vec::new() }
    }
}

impl<T> Findings<T> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Counts one more, and lists it while there is room.
    pub(super) fn push(&mut self, found: T) {
        self.total += 1;
        if self.total <= MAX_LISTED {
            self.listed.push(found);
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.total += other.total;
        self.listed.extend(other.listed);
    }
}

/// A row of a comparison: what it found, and how many rows there are in all.
#[derive(Debug, FromRow)]
struct Counted<T> {
    #[sqlx(flatten)]
    found: T,
    total: i64,
}

/// Runs a comparison. Its statement selects the columns of `T`, in an order of its own, and is told the range as $1
/// and $2.
pub(super) async fn find<T>(
    connection: &mut PgConnection,
    comparison: &str,
    range: Range,
) -> Result<Findings<T>, sqlx::Error>
where
    T: for<'row> FromRow<'row, PgRow> + Send + Unpin,
{
    // The bounds are named in any case, so that a comparison without one has the same parameters.
    let sql = format!(
        "SELECT *, count(*) OVER () AS total FROM ({comparison}) found
         WHERE $1::timestamptz IS NOT NULL AND $2::timestamptz IS NOT NULL ORDER BY 1 LIMIT {MAX_LISTED}"
    );
    let rows: Vec<Counted<T>> =
        sqlx::query_as(&sql).bind(range.from).bind(range.to).fetch_all(connection).await?;
    let total = rows.first().map_or(0, |row| row.total);
    Ok(Findings { total, listed: rows.into_iter().map(|row| row.found).collect() })
}
