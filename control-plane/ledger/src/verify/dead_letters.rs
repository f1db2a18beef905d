//! Records kept aside on which nobody has decided.

use sqlx::PgConnection;

use super::findings::find;
use super::{Difference, Findings, Range};

/// Records that came again under another number, or another record under the same number.
pub(super) async fn duplicates(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(connection, &listed("IN"), range).await
}

/// Records that could not be taken.
pub(super) async fn undecided(
    connection: &mut PgConnection,
    range: Range,
) -> Result<Findings<Difference>, sqlx::Error> {
    find(connection, &listed("NOT IN"), range).await
}

fn listed(membership: &str) -> String {
    format!(
        "SELECT dead_letter::text || ' (' || sender || '.' || sequence || ')' AS subject, reason AS what, topic AS left,
             detail AS right
         FROM ledger_dead_letters l
         WHERE reason {membership} ('duplicate_event', 'sequence_conflict') AND stored_at < $2
             AND NOT EXISTS (SELECT FROM ledger_dead_letter_decisions d WHERE d.dead_letter = l.dead_letter)"
    )
}
