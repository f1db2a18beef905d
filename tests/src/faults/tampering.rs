//! The test of the test: books that were changed by hand must not pass.

use sqlx::{Connection, PgConnection};

use super::books::{Allowance, Books, check};
use super::receipt::Receipt;
use crate::cluster::Cluster;

/// The charge that is meddled with: an ordinary one, of an answer that its client saw to the end.
const VICTIM: &str = "(SELECT min(request_id) FROM ledger_charges WHERE finish_reason IN ('stop', 'length') AND amount > 0 AND entry = 0)";

/// What someone with the database's password might do.
const DEEDS: [(&str, &str); 6] = [
    ("removed", "DELETE FROM ledger_charges WHERE request_id = {victim}"),
    (
        "doubled as a correction",
        "INSERT INTO ledger_charges SELECT (json_populate_record(c, '{\"entry\": 1, \"reason\": \"correction\"}')).*
         FROM ledger_charges c WHERE request_id = {victim}",
    ),
    (
        "doubled under another id",
        "INSERT INTO ledger_charges SELECT (json_populate_record(c, '{\"request_id\": \"req_00000000000000000000000000\"}')).*
         FROM ledger_charges c WHERE request_id = {victim}",
    ),
    ("altered in its tokens", "UPDATE ledger_charges SET generated_tokens = generated_tokens + 1 WHERE request_id = {victim}"),
    (
        "altered in its amount",
        "UPDATE ledger_charges SET generated_amount = generated_amount + 0.000001, amount = amount + 0.000001
         WHERE request_id = {victim}",
    ),
    (
        "altered in its tenant",
        "UPDATE ledger_charges c SET tenant_id = (SELECT min(tenant_id) FROM ledger_charges o WHERE o.tenant_id <> c.tenant_id)
         WHERE request_id = {victim}",
    ),
];

/// Does each deed, sees that both the receipts and `weir ledger verify` notice it, and undoes it.
pub async fn is_noticed(cluster: &Cluster, receipts: &[Receipt], allowance: Allowance) {
    let mut connection = PgConnection::connect(cluster.database_url()).await.unwrap();
    execute(&mut connection, "CREATE TABLE kept AS SELECT * FROM ledger_charges").await;
    for (name, deed) in DEEDS {
        change(&mut connection, &deed.replace("{victim}", VICTIM)).await;
        let wrong = check(receipts, &Books::read(&mut connection).await, allowance);
        assert!(!wrong.is_empty(), "a charge that is {name} is not noticed by the receipts");
        let output = cluster.verify_all();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            output.status.code(),
            Some(1),
            "a charge that is {name} is not noticed by verify:\n{said}"
        );
        change(&mut connection, "DELETE FROM ledger_charges").await;
        change(&mut connection, "INSERT INTO ledger_charges SELECT * FROM kept").await;
    }
    execute(&mut connection, "DROP TABLE kept").await;
    let wrong = check(receipts, &Books::read(&mut connection).await, allowance);
    assert!(wrong.is_empty() && cluster.verify_all().status.success(), "all deeds are undone: {wrong:?}");
}

/// Changes what is never changed.
async fn change(connection: &mut PgConnection, sql: &str) {
    execute(connection, "ALTER TABLE ledger_charges DISABLE TRIGGER USER").await;
    let changed = sqlx::query(sql).execute(&mut *connection).await.unwrap().rows_affected();
    assert!(changed > 0, "nothing was changed by: {sql}");
    execute(connection, "ALTER TABLE ledger_charges ENABLE TRIGGER USER").await;
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}
