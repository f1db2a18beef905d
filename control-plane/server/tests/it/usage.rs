//! Usage and costs over the ledger's roll-up: OpenAI's shape, exact amounts, each tenant its own.

use serde_json::{Value, json};

use crate::support::{ControlPlane, Installation};

/// A day and an hour into 2026, on the hour.
const HOUR_S: i64 = 1_767_229_200;

struct Minute<'a> {
    tenant: &'a str,
    minute: i64,
    key: &'a str,
    model: &'a str,
    currency: &'a str,
    tokens: [i64; 3],
    amount: &'a str,
}

async fn insert(sql: &mut sqlx::PgConnection, row: Minute<'_>) {
    let [input, cached, output] = row.tokens;
    sqlx::query(
        "INSERT INTO ledger_usage_minutes (tenant_id, bucket_start, key_id, project, requested_model, version_id,
         tier, currency, requests, input_tokens, input_cached_tokens, output_tokens, amount)
         VALUES ($1, to_timestamp($2), $3, 'search', $4, 'ver_x', 'interactive', $5, 1, $6, $7, $8, $9::numeric)",
    )
    .bind(row.tenant)
    .bind(HOUR_S + row.minute * 60)
    .bind(row.key)
    .bind(row.model)
    .bind(row.currency)
    .bind(input)
    .bind(cached)
    .bind(output)
    .bind(row.amount)
    .execute(sql)
    .await
    .unwrap();
}

struct Fixture {
    installation: Installation,
    plane: ControlPlane,
    acme: String,
    acme_token: String,
    other: String,
}

async fn fixture() -> Fixture {
    let installation = Installation::new();
    let plane = installation.start().await;
    let (acme, other) = (plane.tenant("acme").await, plane.tenant("other").await);
    let (_, acme_token) = plane.key(&acme, &["usage:read"]).await;
    let mut sql = installation.sql().await;
    let acme_row = Minute {
        tenant: &acme,
        minute: 0,
        key: "key_a",
        model: "m",
        currency: "USD",
        tokens: [100, 32, 7],
        amount: "0.000123456789012345",
    };
    insert(&mut sql, Minute { ..acme_row }).await;
    insert(&mut sql, Minute { minute: 1, key: "key_b", amount: "0.000000000000000001", ..acme_row }).await;
    insert(&mut sql, Minute { minute: 1, model: "n", currency: "", amount: "0", ..acme_row }).await;
    insert(&mut sql, Minute { minute: 125, tokens: [1, 0, 1], amount: "2", ..acme_row }).await;
    insert(&mut sql, Minute { tenant: &other, tokens: [1_000, 0, 1], amount: "5.50", ..acme_row }).await;
    Fixture { installation, plane, acme, acme_token, other }
}

impl Fixture {
    async fn get(&self, token: &str, path: &str) -> Value {
        self.plane.send("GET", path, token, &[], None).await.expect(200)
    }
}

#[tokio::test]
async fn a_tenant_sees_its_own_usage_by_hour_and_group() {
    let fixture = fixture().await;
    let query = format!("start_time={HOUR_S}&end_time={}&bucket_width=1h", HOUR_S + 3 * 3_600);
    let page = fixture.get(&fixture.acme_token, &format!("/api/v1/usage?{query}")).await;
    assert_eq!(page["object"], "page");
    assert_eq!((page["has_more"].clone(), page["next_page"].clone()), (json!(false), Value::Null));
    let buckets = page["data"].as_array().unwrap();
    assert_eq!(buckets.len(), 3, "empty ones too");
    assert_eq!(
        buckets[1],
        json!({"object": "bucket", "start_time": HOUR_S + 3_600, "end_time": HOUR_S + 7_200, "results": []})
    );
    let sums = &buckets[0]["results"][0];
    assert_eq!(sums["object"], "organization.usage.completions.result");
    let numbers = ["input_tokens", "input_cached_tokens", "output_tokens", "num_model_requests"];
    assert_eq!(numbers.map(|name| sums[name].as_i64().unwrap()), [300, 96, 21, 3]);
    assert!(sums["model"].is_null() && sums["tenant_id"].is_null());

    let grouped = fixture
        .get(
            &fixture.acme_token,
            &format!("/api/v1/usage?{query}&group_by[]=model&group_by[]=api_key_id&limit=1"),
        )
        .await;
    let results = grouped["data"][0]["results"].as_array().unwrap();
    let groups: Vec<_> = results
        .iter()
        .map(|row| (row["api_key_id"].as_str().unwrap(), row["model"].as_str().unwrap()))
        .collect();
    assert_eq!(groups, [("key_a", "m"), ("key_a", "n"), ("key_b", "m")]);
    assert_eq!(grouped["has_more"], true);
    let next = grouped["next_page"].as_str().unwrap();
    let rest = fixture.get(&fixture.acme_token, &format!("/api/v1/usage?{query}&page={next}")).await;
    assert_eq!(rest["data"].as_array().unwrap().len(), 2);
    assert_eq!(rest["data"][1]["results"][0]["output_tokens"], 1);
    let filtered = fixture.get(&fixture.acme_token, &format!("/api/v1/usage?{query}&models[]=n")).await;
    assert_eq!(filtered["data"][0]["results"][0]["num_model_requests"], 1);
    fixture.plane.stop().await;
}

#[tokio::test]
async fn costs_are_exact_to_the_last_digit() {
    let fixture = fixture().await;
    let path = format!("/api/v1/costs?start_time={HOUR_S}&end_time={}", HOUR_S + 3_600);
    let answer = fixture.plane.send("GET", &path, &fixture.acme_token, &[], None).await;
    assert!(
        answer.text.contains("\"amount\":{\"value\":0.000123456789012346,\"currency\":\"usd\"}"),
        "{}",
        answer.text
    );
    let page = answer.expect(200);
    assert_eq!(page["data"].as_array().unwrap().len(), 1, "one day");
    assert_eq!(page["data"][0]["results"][0]["object"], "organization.costs.result");
    let grouped = fixture.get(&fixture.acme_token, &format!("{path}&group_by=line_item")).await;
    let results = grouped["data"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 1, "what has no price has no cost");
    assert_eq!(results[0]["line_item"], "m");
    fixture.plane.stop().await;
}

#[tokio::test]
async fn an_operator_sees_everyones_or_one_tenants() {
    let fixture = fixture().await;
    let admin = fixture.plane.admin.clone();
    let query = format!("start_time={HOUR_S}&end_time={}&bucket_width=1d", HOUR_S + 3_600);
    let by_tenant = fixture.get(&admin, &format!("/api/v1/usage?{query}&group_by=tenant_id")).await;
    let mut sums: Vec<_> = by_tenant["data"][0]["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["tenant_id"].as_str().unwrap().to_owned(), row["input_tokens"].as_i64().unwrap()))
        .collect();
    sums.sort();
    let mut expected = [(fixture.acme.clone(), 300), (fixture.other.clone(), 1_000)];
    expected.sort();
    assert_eq!(sums, expected);
    let one = fixture.get(&admin, &format!("/api/v1/costs?{query}&tenant_id={}", fixture.other)).await;
    assert_eq!(one["data"][0]["results"][0]["amount"]["value"], 5.5);
    fixture.plane.send("GET", "/api/v1/usage", &admin, &[], None).await.expect(400);
    fixture.plane.send("GET", "/api/v1/usage?start_time=0&tenant_id=x", &admin, &[], None).await.expect(404);
    fixture.plane.stop().await;
}

#[tokio::test]
async fn row_level_security_holds_for_a_query_that_forgets_its_tenant() {
    let fixture = fixture().await;
    fixture.plane.key(&fixture.other, &["inference"]).await;
    let mut sql = fixture.installation.sql().await;
    let owns: bool = sqlx::query_scalar("SELECT pg_has_role('weir_tenant', 'weir', 'MEMBER') OR rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = 'weir_tenant'")
        .fetch_one(&mut sql)
        .await
        .unwrap();
    assert!(!owns, "neither owner nor superuser");
    sqlx::query("SELECT set_config('weir.tenant_id', $1, false), set_config('role', 'weir_tenant', false)")
        .bind(&fixture.acme)
        .execute(&mut sql)
        .await
        .unwrap();
    for table in ["tenants", "keys", "ledger_usage_minutes"] {
        let tenants: Vec<String> = sqlx::query_scalar(&format!("SELECT DISTINCT tenant_id FROM {table}"))
            .fetch_all(&mut sql)
            .await
            .unwrap();
        assert_eq!(tenants, std::slice::from_ref(&fixture.acme), "{table}");
    }
    let streams: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT stream FROM events").fetch_all(&mut sql).await.unwrap();
    assert_eq!(streams, std::slice::from_ref(&fixture.acme));
    for table in
        ["signing_keys", "platform_keys", "idempotency_keys", "nodes", "price_versions", "ledger_executions"]
    {
        let refused = sqlx::query(&format!("SELECT * FROM {table}")).execute(&mut sql).await.unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{table}: {refused}");
    }
    let refused = sqlx::query("UPDATE tenants SET weight = 9").execute(&mut sql).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    fixture.plane.stop().await;
}
