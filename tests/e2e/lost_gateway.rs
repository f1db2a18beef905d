//! A gateway that is gone with its disk: what it had under way is charged from the workers' records, once.

use futures::StreamExt;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use weir_tests::cluster::{Cluster, Part};
use weir_tests::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_gateway_had_under_way_is_charged_from_executions() {
    let disk = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Some(disk.path())).await;
    cluster.set(Part::Ledger, "orphan_grace_ms = 2000");
    assert!(cluster.stop(Part::Ledger));
    cluster.run(Part::Ledger);
    let tenant = cluster.operator().create_tenant("unlucky", json!({}), chrono::Utc::now()).await;
    let more = json!({"max_tokens": 900, "temperature": 0});
    let mut body = tenant.api.stream("Tell a very long story.", more).await.bytes_stream();
    for _ in 0..3 {
        body.next().await.unwrap().unwrap();
    }
    cluster.kill(Part::Gateway);
    for entry in std::fs::read_dir(disk.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
    }
    cluster.run(Part::Gateway);
    cluster.serves().await;
    let mut ledger = PgConnection::connect(cluster.database_url()).await.unwrap();
    let charged = "SELECT c.reason, c.key_id, c.requested_model, c.prompt_tokens - e.prompt_tokens,
                       c.generated_tokens - e.generated_tokens, c.generated_tokens > 0 AND c.amount > 0
                   FROM ledger_charges c JOIN ledger_executions e USING (request_id) WHERE c.tenant_id = $1";
    let ledger = tokio::sync::Mutex::new(&mut ledger);
    let row: (String, String, String, i64, i64, bool) = until("the request is charged", || async {
        let mut connection = ledger.lock().await;
        sqlx::query_as(charged).bind(&tenant.id).fetch_optional(&mut **connection).await.unwrap()
    })
    .await;
    let model = weir_tests::installation::MODEL.to_owned();
    assert_eq!(row, ("execution".to_owned(), tenant.key_id.clone(), model, 0, 0, true));
    let verified = cluster.verify_all();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(said.contains("(1 from executions alone"), "{said}");
}
