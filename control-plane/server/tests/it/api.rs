//! What every operation has in common: ETags, idempotency, strict bodies, pages, past moments, conflicts.

use serde_json::json;

use crate::support::{Installation, START_S, version_body};

#[tokio::test]
async fn a_change_based_on_an_old_read_is_refused() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let path = format!("/api/v1/tenants/{tenant}");
    let etag = plane.get(&path).await.etag();
    let patch = |weight: u32| json!({"weight": weight});

    let headers = [("if-match", etag.as_str())];
    let changed = plane.send("PATCH", &path, &plane.admin, &headers, Some(&patch(2))).await;
    assert_ne!(changed.etag(), etag);
    assert_eq!(changed.expect(200)["weight"], 2);
    let stale = plane.send("PATCH", &path, &plane.admin, &headers, Some(&patch(3))).await;
    assert_eq!(stale.expect(412)["code"], "version_conflict");
    assert_eq!(plane.get(&path).await.json()["weight"], 2);
    // Without If-Match the change stands on whatever is there.
    plane.send("PATCH", &path, &plane.admin, &[], Some(&patch(3))).await.expect(200);
    let unchanged = plane.send("PATCH", &path, &plane.admin, &[], Some(&patch(3))).await;
    assert_eq!(unchanged.etag(), plane.get(&path).await.etag(), "no change, no new version");
    plane.stop().await;
}

#[tokio::test]
async fn limits_on_models_are_made_changed_and_shown() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let limits = json!({"small": {"tokens_per_minute": 1000, "input_tokens_per_minute": 800}});
    let made =
        plane.post("/api/v1/tenants", json!({"name": "acme", "model_limits": limits})).await.expect(201);
    assert_eq!(made["model_limits"], limits);
    let path = format!("/api/v1/tenants/{}", made["id"].as_str().unwrap());
    let patch = async |body| plane.send("PATCH", &path, &plane.admin, &[], Some(&body)).await.expect(200);
    assert_eq!(patch(json!({"weight": 2})).await["model_limits"], limits, "what is absent stays");
    let changed = json!({"large": {"output_tokens_per_minute": 5, "max_context_tokens": 100}});
    assert_eq!(patch(json!({"model_limits": changed})).await["model_limits"], changed);
    assert_eq!(plane.get(&path).await.json()["model_limits"], changed);
    assert_eq!(plane.get("/api/v1/tenants").await.json()["data"][0]["model_limits"], changed);

    let body = json!({"name": "ci", "scopes": ["inference"], "model_limits": limits});
    let key = plane.post(&format!("{path}/keys"), body).await.expect(201);
    assert_eq!(key["model_limits"], limits);
    let shown = plane.get(&format!("{path}/keys/{}", key["id"].as_str().unwrap())).await.json();
    assert_eq!(shown["model_limits"], limits);
    plane.stop().await;
}

#[tokio::test]
async fn overload_policies_are_made_changed_and_shown() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let version = plane.version("m").await;
    let body = |overload| json!({"version_id": version, "pool": "default", "overload": overload});
    for (wrong, says) in [
        (json!({"interactive": {"policy": "drop"}}), "drop"),
        (json!({"interactive": {"policy": "shed", "max_depth": 1}}), "max_depth"),
        (json!({"interactive": {"policy": "shrink"}}), "max_output_tokens"),
        (json!({"batch": {"policy": "queue", "max_wait_ms": 0}}), "overload.max_wait_ms"),
        (json!({"batch": {"policy": "overflow", "model": "a b"}}), "overload.model"),
        (json!({"realtime": {"policy": "shed"}}), "realtime"),
    ] {
        let refused = plane.post("/api/v1/deployments", body(wrong.clone())).await;
        assert!(refused.text.contains(says), "{wrong}: {}", refused.text);
        refused.expect(400);
    }
    let wanted = json!({"interactive": {"policy": "overflow", "model": "small", "max_depth": 9}});
    plane.alias("small", &plane.version("s").await).await;
    let made = plane.post("/api/v1/deployments", body(wanted)).await.expect(201);
    let queue = json!({"policy": "queue", "max_depth": 1024, "max_wait_ms": 60_000});
    let overflow = json!({"policy": "overflow", "model": "small", "max_depth": 9, "max_wait_ms": 60_000});
    assert_eq!(made["overload"], json!({"interactive": overflow, "batch": queue}));
    let path = format!("/api/v1/deployments/{}", made["id"].as_str().unwrap());
    let patch = async |body| plane.send("PATCH", &path, &plane.admin, &[], Some(&body)).await.expect(200);
    assert_eq!(patch(json!({"replicas": 2})).await["overload"], made["overload"], "what is absent stays");
    let changed = patch(json!({"overload": {"batch": {"policy": "shed"}}})).await;
    assert_eq!(changed["overload"], json!({"interactive": queue, "batch": {"policy": "shed"}}));
    assert_eq!(plane.get("/api/v1/deployments").await.json()["data"][0]["overload"], changed["overload"]);
    plane.stop().await;
}

#[tokio::test]
async fn overflow_leads_to_another_model_that_is_there() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let version = plane.version("m").await;
    plane.alias("large", &version).await;
    let small = plane.alias("small", &plane.version("s").await).await;
    let overload = |class: &str, model| json!({class: {"policy": "overflow", "model": model}});
    let body = |overload| json!({"version_id": version, "pool": "default", "overload": overload});
    let made = plane.post("/api/v1/deployments", body(overload("batch", "small"))).await.expect(201);
    let path = format!("/api/v1/deployments/{}", made["id"].as_str().unwrap());
    for (class, model, says) in [
        ("interactive", "nowhere", "no alias"),
        ("batch", "s", "no alias"),
        ("batch", "large", "own version"),
    ] {
        let overload = overload(class, model);
        let mut other = body(overload.clone());
        other["pool"] = json!("other");
        let refused = [
            plane.post("/api/v1/deployments", other).await,
            plane.send("PATCH", &path, &plane.admin, &[], Some(&json!({"overload": overload}))).await,
        ];
        for refused in refused {
            let problem = refused.expect(400);
            let detail = problem["detail"].as_str().unwrap();
            let field = format!("overload.{class}.model names '{model}'");
            assert!(detail.starts_with(&field) && detail.contains(says), "{problem}");
        }
    }
    let listed = plane.get("/api/v1/deployments").await.json();
    assert_eq!(listed["data"], json!([made]), "a refused write leaves nothing");

    // The alias goes; what overflowed to it can be changed, and be given no such policy anew.
    plane.send("DELETE", &small, &plane.admin, &[], None).await.expect(204);
    let patch = async |body| plane.send("PATCH", &path, &plane.admin, &[], Some(&body)).await;
    assert_eq!(patch(json!({"replicas": 2})).await.expect(200)["overload"], made["overload"]);
    patch(json!({"overload": overload("batch", "small")})).await.expect(400);
    plane.stop().await;
}

#[tokio::test]
async fn a_repeat_under_one_idempotency_key_changes_nothing() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let headers = [("idempotency-key", "make-acme")];
    let body = json!({"name": "acme"});
    let post = async |headers: &[(&str, &str)], body: &serde_json::Value| {
        plane.send("POST", "/api/v1/tenants", &plane.admin, headers, Some(body)).await
    };
    let first = post(&headers, &body).await;
    let again = post(&headers, &body).await;
    assert!(!first.headers.contains_key("idempotency-replayed"));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(
        (again.etag(), again.headers["location"].clone()),
        (first.etag(), first.headers["location"].clone())
    );
    let tenant = first.expect(201);
    assert_eq!(again.expect(201), tenant);

    let other = post(&headers, &json!({"name": "other"})).await.expect(409);
    assert!(other["detail"].as_str().unwrap().contains("Idempotency-Key"));
    post(&[("idempotency-key", "another")], &body).await.expect(409);
    // A day later the key is free again; the name is not.
    installation.advance(25 * 3600);
    assert!(post(&headers, &body).await.expect(409)["detail"].as_str().unwrap().contains("name"));

    // A key's token is shown once and kept nowhere.
    let keys = format!("/api/v1/tenants/{}/keys", tenant["id"].as_str().unwrap());
    let body = json!({"name": "ci", "scopes": ["inference"]});
    let make = async || plane.send("POST", &keys, &plane.admin, &headers, Some(&body)).await.expect(201);
    let (made, repeated) = (make().await, make().await);
    assert_eq!(made["id"], repeated["id"]);
    let token = made["token"].as_str().unwrap();
    assert!(repeated["token"].is_null() && repeated["note"].as_str().unwrap().contains("not stored"));
    let mut sql = installation.sql().await;
    for table in ["idempotency_keys", "events", "keys"] {
        let rows: String =
            sqlx::query_scalar(&format!("SELECT coalesce(string_agg(t::text, ''), '') FROM {table} t"))
                .fetch_one(&mut sql)
                .await
                .unwrap();
        assert!(!rows.contains(token), "{table}");
    }
    plane.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_a_4xx() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let raw = async |kind: &str, body: Vec<u8>| {
        let request = plane.client.post(format!("{}/api/v1/tenants", plane.base)).bearer_auth(&plane.admin);
        request.header("content-type", kind).body(body).send().await.unwrap().status().as_u16()
    };
    assert_eq!(raw("application/json", b"{".to_vec()).await, 400);
    assert_eq!(raw("application/json", vec![0xff, 0xfe]).await, 400);
    assert_eq!(raw("application/json", b"[".repeat(10_000)).await, 400);
    assert_eq!(raw("application/json", vec![b' '; 100_000]).await, 413);
    assert_eq!(raw("text/plain", b"{\"name\":\"x\"}".to_vec()).await, 415);
    for body in [
        json!({}),
        json!({"name": ""}),
        json!({"name": "x", "colour": "red"}),
        json!({"name": "x", "weight": -1}),
        json!({"name": "x", "weight": 0}),
        json!({"name": "x", "limits": {"tokens_per_minute": 0}}),
        json!({"name": "x", "model_limits": {"m": {"output_tokens_per_minute": 0}}}),
        json!({"name": "x", "model_limits": {"a b": {}}}),
        json!({"name": "x", "limits": {"tokens_per_day": 1}}),
    ] {
        plane.post("/api/v1/tenants", body).await.expect(400);
    }
    for (path, status) in [
        ("/api/v1/tenants?limit=0", 400),
        ("/api/v1/tenants?limit=201", 400),
        ("/api/v1/tenants?colour=red", 400),
        ("/api/v1/tenants/nonsense", 404),
        ("/api/v1/models/ten_00000000000000000000000001", 404),
        ("/api/v1/nowhere", 404),
    ] {
        plane.get(path).await.expect(status);
    }
    plane.send("PUT", "/api/v1/tenants", &plane.admin, &[], None).await.expect(405);
    plane.stop().await;
}

#[tokio::test]
async fn lists_are_pages_by_cursor() {
    let installation = Installation::new();
    let plane = installation.start().await;
    for n in 0..5 {
        installation.advance(1);
        plane.tenant(&format!("tenant {n}")).await;
    }
    let mut names = Vec::new();
    let mut path = "/api/v1/tenants?limit=2".to_owned();
    loop {
        let page = plane.get(&path).await.expect(200);
        let data = page["data"].as_array().unwrap();
        names.extend(data.iter().map(|tenant| tenant["name"].as_str().unwrap().to_owned()));
        if page["has_more"] == false {
            assert!(page["next_cursor"].is_null());
            break;
        }
        assert_eq!(data.len(), 2);
        path = format!("/api/v1/tenants?limit=2&after={}", page["next_cursor"].as_str().unwrap());
    }
    assert_eq!(names, ["tenant 0", "tenant 1", "tenant 2", "tenant 3", "tenant 4"]);
    plane.stop().await;
}

#[tokio::test]
async fn an_aggregate_is_shown_as_of_a_past_position_or_time() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let path = format!("/api/v1/tenants/{tenant}");
    let events = plane.get(&format!("/api/v1/events?stream={tenant}")).await.expect(200);
    let position = events["data"][0]["position"].as_u64().unwrap();
    installation.advance(60);
    plane.send("PATCH", &path, &plane.admin, &[], Some(&json!({"name": "acme 2"}))).await.expect(200);

    let name = async |query: String| plane.get(&format!("{path}?{query}")).await.json()["name"].clone();
    assert_eq!(name(format!("as_of_position={position}")).await, "acme");
    assert_eq!(name(format!("as_of_position={}", position + 1)).await, "acme 2");
    let at = |seconds: i64| {
        chrono::DateTime::from_timestamp(START_S + seconds, 0).unwrap().to_rfc3339().replace("+00:00", "Z")
    };
    assert_eq!(name(format!("as_of_time={}", at(59))).await, "acme");
    assert_eq!(name(format!("as_of_time={}", at(60))).await, "acme 2");
    plane.get(&format!("{path}?as_of_time={}", at(-1))).await.expect(404);
    plane.get(&format!("{path}?as_of_position=1&as_of_time={}", at(0))).await.expect(400);
    plane.stop().await;
}

#[tokio::test]
async fn rules_across_aggregates_are_told_in_words() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let version = plane.version("m").await;
    let ghost = "ver_00000000000000000000000001";
    let alias = |version: &str| json!({"name": "a", "targets": [{"version_id": version, "weight": 1}]});
    let alias_id = plane.post("/api/v1/aliases", alias(&version)).await.expect(201)["id"].clone();
    let deployment = json!({"version_id": version, "pool": "default"});
    plane.post("/api/v1/deployments", deployment.clone()).await.expect(201);
    let book =
        plane.post("/api/v1/price-books", json!({"name": "list", "currency": "USD"})).await.expect(201);
    let other = plane.post("/api/v1/price-books", json!({"name": "eu", "currency": "EUR"})).await.expect(201);
    let prices =
        |book: &serde_json::Value| format!("/api/v1/price-books/{}/prices", book["id"].as_str().unwrap());
    let price = |version: &str| {
        json!({"version_id": version, "prompt_per_million": "0.1", "cached_prompt_per_million": "0.05",
               "generated_per_million": "0.4"})
    };
    plane.post(&prices(&book), price(&version)).await.expect(201);
    let mut ghostly = alias(ghost);
    ghostly["name"] = json!("ghostly");
    let mut late = price(&version);
    late["effective_from"] = json!("2001-01-01T00:00:00Z");
    let mut float = price(&version);
    float["prompt_per_million"] = json!(0.1);

    for (path, body, status, says) in [
        ("/api/v1/models".to_owned(), json!({"name": "m"}), 409, "model of this name"),
        ("/api/v1/versions".into(), version_body(&json!("mdl_00000000000000000000000001")), 400, "model_id"),
        ("/api/v1/aliases".into(), alias(&version), 409, "alias of this name"),
        ("/api/v1/aliases".into(), ghostly, 400, "does not exist"),
        ("/api/v1/deployments".into(), deployment, 409, "serves this version already"),
        ("/api/v1/deployments".into(), json!({"version_id": ghost, "pool": "p"}), 400, "does not exist"),
        (prices(&other), price(&version), 409, "another price book"),
        (prices(&book), price(ghost), 400, "does not exist"),
        (prices(&book), late, 400, "effective_from"),
        (prices(&book), float, 400, "floating point"),
        (
            "/api/v1/price-books/prb_00000000000000000000000001/prices".into(),
            price(&version),
            404,
            "no such price book",
        ),
    ] {
        let problem = plane.post(&path, body).await.expect(status);
        assert!(problem["detail"].as_str().unwrap().contains(says), "{path}: {problem}");
    }
    // A failed command leaves no trace, and a deleted alias' name is free.
    plane
        .post(
            "/api/v1/aliases",
            json!({"name": "ghostly", "targets": [{"version_id": version, "weight": 1}]}),
        )
        .await
        .expect(201);
    let alias_path = format!("/api/v1/aliases/{}", alias_id.as_str().unwrap());
    plane.send("DELETE", &alias_path, &plane.admin, &[], None).await.expect(204);
    plane.get(&alias_path).await.expect(404);
    plane.post("/api/v1/aliases", alias(&version)).await.expect(201);
    let listed = plane.get(&prices(&book)).await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(listed["data"][0]["generated_per_million"], "0.4");
    plane.stop().await;
}
