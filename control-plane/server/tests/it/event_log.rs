//! The log: positions without gaps in commit order, whoever writes; never edited; read models rebuilt from it are
//! identical.

use serde_json::json;

use crate::support::Installation;

#[tokio::test]
async fn positions_have_no_gaps_and_follow_commit_order_over_two_control_planes() {
    let installation = Installation::new();
    let (one, two) = (installation.start().await, installation.start().await);
    let tenant = one.tenant("acme").await;
    let admin = &one.admin;
    let path = format!("/api/v1/tenants/{tenant}");
    let etag = one.get(&path).await.etag();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..24u32 {
        let (client, admin, etag) = (one.client.clone(), admin.clone(), etag.clone());
        let base = if n % 2 == 0 { one.base.clone() } else { two.base.clone() };
        let path = path.clone();
        calls.spawn(async move {
            // Two thirds make tenants, some of the same name; one third race for the same version.
            let request = match n % 3 {
                0 => client
                    .patch(format!("{base}{path}"))
                    .header("if-match", etag)
                    .json(&json!({"weight": n + 2})),
                _ => client
                    .post(format!("{base}/api/v1/tenants"))
                    .json(&json!({"name": format!("t{}", n / 2)})),
            };
            request.bearer_auth(admin).send().await.unwrap().status().as_u16()
        });
    }
    let statuses = calls.join_all().await;
    let count = |status| statuses.iter().filter(|&&found| found == status).count();
    assert_eq!(count(200), 1, "one change on that version wins: {statuses:?}");
    assert_eq!(count(412), 7);
    assert_eq!(count(201) + count(409), 16);
    assert_eq!(statuses.len(), 24);

    let mut sql = installation.sql().await;
    let positions: Vec<i64> = sqlx::query_scalar("SELECT position FROM events ORDER BY position")
        .fetch_all(&mut sql)
        .await
        .unwrap();
    assert_eq!(positions, (1..=i64::try_from(positions.len()).unwrap()).collect::<Vec<_>>());
    let versions: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT stream FROM events GROUP BY stream HAVING max(version) <> count(*)) AS gaps",
    )
    .fetch_one(&mut sql)
    .await
    .unwrap();
    assert_eq!(versions, 0, "versions have no gaps either");
    assert!(one.metrics().contains("weir_control_plane_event_lock_hold_seconds_count"));
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn stored_events_are_never_edited() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let mut sql = installation.sql().await;
    for statement in ["UPDATE events SET actor = 'x'", "DELETE FROM events", "TRUNCATE events"] {
        let refused = sqlx::query(statement).execute(&mut sql).await.unwrap_err();
        assert!(refused.to_string().contains("never edited"), "{statement}: {refused}");
    }
    plane.stop().await;
}

const VIEWS: [&str; 13] = [
    "tenants",
    "signing_keys",
    "keys",
    "platform_keys",
    "models",
    "versions",
    "aliases",
    "alias_targets",
    "deployments",
    "price_books",
    "priced_versions",
    "price_versions",
    "nodes",
];

#[tokio::test]
async fn rebuilt_read_models_are_identical() {
    let installation = Installation::new();
    let plane = installation.start().await;
    crate::stream::register(&plane, "gtw_00000000000000000000000001", "").await;
    let tenant = plane.tenant("acme").await;
    let (key, _) = plane.key(&tenant, &["inference", "usage:read"]).await;
    plane.key(&tenant, &["tenant:admin"]).await;
    let (old, new) = (plane.version("one").await, plane.version("two").await);
    let call = async |method: &str, path: String, body: Option<serde_json::Value>| {
        let answer = plane.send(method, &path, &plane.admin, &[], body.as_ref()).await;
        assert!(answer.status.is_success(), "{method} {path}: {}", answer.text);
        answer.json()["id"].as_str().unwrap_or_default().to_owned()
    };
    let targets = |version: &str| json!([{"version_id": version, "weight": 3}]);
    let post = "POST";
    let path = |noun: &str, id: &str| format!("/api/v1/{noun}/{id}");
    call("DELETE", format!("/api/v1/tenants/{tenant}/keys/{key}"), None).await;
    call(
        "PATCH",
        path("tenants", &tenant),
        Some(json!({
            "name": "b", "weight": 7, "state": "suspended", "limits": {"tokens_per_minute": 9},
            "model_limits": {"one": {"input_tokens_per_minute": 5}}, "may_overflow": true,
        })),
    )
    .await;
    let alias =
        call(post, "/api/v1/aliases".into(), Some(json!({"name": "a", "targets": targets(&old)}))).await;
    call("PUT", path("aliases", &format!("{alias}/targets")), Some(json!({"targets": targets(&new)}))).await;
    let gone =
        call(post, "/api/v1/aliases".into(), Some(json!({"name": "gone", "targets": targets(&old)}))).await;
    call("DELETE", path("aliases", &gone), None).await;
    let kept = call(post, "/api/v1/deployments".into(), Some(json!({"version_id": old, "pool": "p"}))).await;
    call(
        "PATCH",
        path("deployments", &kept),
        Some(json!({
            "replicas": 4, "slo": {"ttft_ms": 1, "itl_ms": 2}, "overload": {"interactive": {"policy": "shed"}},
        })),
    )
    .await;
    let ended = call(post, "/api/v1/deployments".into(), Some(json!({"version_id": new, "pool": "p"}))).await;
    call("DELETE", path("deployments", &ended), None).await;
    let book =
        call(post, "/api/v1/price-books".into(), Some(json!({"name": "list", "currency": "USD"}))).await;
    let price = json!({"version_id": old, "prompt_per_million": "0.123456789012", "cached_prompt_per_million": "0", "generated_per_million": "1"});
    call(post, path("price-books", &format!("{book}/prices")), Some(price)).await;
    call(post, "/api/v1/signing-keys/rotate".into(), None).await;
    call("DELETE", path("nodes", "gtw_00000000000000000000000001"), None).await;

    let mut sql = installation.sql().await;
    let mut before = Vec::new();
    for view in VIEWS {
        let rows = dump(&mut sql, view).await;
        assert!(!rows.is_empty(), "{view} has rows to lose");
        before.push(rows);
    }
    sqlx::query("UPDATE tenants SET name = 'damaged', weight = 1").execute(&mut sql).await.unwrap();
    sqlx::query("DELETE FROM price_versions").execute(&mut sql).await.unwrap();
    weir_server::rebuild(&installation.config(), &installation.clock()).await.unwrap();
    for (view, before) in VIEWS.into_iter().zip(before) {
        assert_eq!(dump(&mut sql, view).await, before, "{view}");
    }
    plane.stop().await;
}

async fn dump(sql: &mut sqlx::PgConnection, view: &str) -> Vec<String> {
    sqlx::query_scalar(&format!("SELECT to_jsonb(t)::text FROM {view} t ORDER BY 1"))
        .fetch_all(sql)
        .await
        .unwrap()
}
