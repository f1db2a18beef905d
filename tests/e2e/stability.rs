//! The data plane outlives its control plane, every process starts in any order and drains when asked to stop.

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::json;
use weir_tests::api::{Tenant, chat_body};
use weir_tests::cluster::{Cluster, Part};
use weir_tests::wait::until;

/// What a process says of its readiness: the status, and why not.
async fn readiness(cluster: &Cluster, part: Part) -> Option<(StatusCode, String)> {
    let url = cluster.metrics_url(part).replace("/metrics", "/readyz");
    let response = reqwest::get(url).await.ok()?;
    Some((response.status(), response.text().await.ok()?))
}

async fn until_not_ready(cluster: &Cluster, part: Part, why: &str) {
    until(&format!("{part:?} says {why}"), || async {
        let (status, said) = readiness(cluster, part).await?;
        (status == StatusCode::SERVICE_UNAVAILABLE && said.contains(why)).then_some(())
    })
    .await;
}

async fn until_ready(cluster: &Cluster, part: Part) {
    until(&format!("{part:?} is ready"), || async {
        cluster.check_running();
        readiness(cluster, part).await.filter(|(status, _)| status.is_success())
    })
    .await;
}

async fn ask(tenant: &Tenant) -> (StatusCode, serde_json::Value) {
    tenant.api.post("/chat/completions", &chat_body("Hi", json!({"max_tokens": 2, "temperature": 0}))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_control_plane_and_postgres_requests_go_on_limits_hold_and_nodes_restart_from_disk() {
    let cluster = Cluster::start(None).await;
    let operator = cluster.operator();
    let now = chrono::Utc::now();
    let tenant = operator.create_tenant("free", json!({}), now).await;
    let limited = operator.create_tenant("limited", json!({"requests_per_minute": 10}), now).await;
    assert_eq!(ask(&tenant).await.0, StatusCode::OK);

    cluster.kill(Part::ControlPlane);
    cluster.postgres.crash();
    assert_eq!(ask(&tenant).await.0, StatusCode::OK);
    cluster.kill(Part::Worker);
    cluster.run(Part::Worker);
    cluster.serves().await;
    // All of a minute's requests, and then a gateway that knows of them only what its record log says.
    let mut used = 0;
    while ask(&limited).await.0 == StatusCode::OK {
        used += 1;
        assert!(used < 30, "ten a minute");
    }
    assert!(used >= 10, "{used}");
    let refused = Instant::now();
    cluster.kill(Part::Gateway);
    cluster.run(Part::Gateway);
    cluster.serves().await;
    assert_eq!(ask(&tenant).await.0, StatusCode::OK);
    // One is refilled each six seconds, whether the gateway was there or not.
    let mut granted = 0;
    while ask(&limited).await.0 == StatusCode::OK {
        granted += 1;
        assert!(granted <= 1 + refused.elapsed().as_secs() / 6, "{granted} after {:?}", refused.elapsed());
    }

    // Back: a key that is revoked now is refused within a second.
    cluster.postgres.resume();
    cluster.run(Part::ControlPlane);
    let path = format!("/tenants/{}/keys/{}", tenant.id, tenant.key_id);
    until("the revocation is taken", || async {
        let (status, _) = operator.try_control(Method::DELETE, &path, None).await?;
        (status == StatusCode::NO_CONTENT).then_some(())
    })
    .await;
    let revoked = Instant::now();
    while ask(&tenant).await.0 != StatusCode::UNAUTHORIZED {
        assert!(revoked.elapsed() < Duration::from_secs(1), "still served a second after the revocation");
    }
    // What every node holds is seen.
    until("both nodes hold what is published", || async {
        let (_, config) = operator.control(Method::GET, "/config", None).await;
        let (_, nodes) = operator.control(Method::GET, "/nodes", None).await;
        let nodes = nodes["data"].as_array()?;
        let current =
            |node: &&serde_json::Value| node["connected"] == true && node["revision"] == config["revision"];
        (nodes.len() == 2 && nodes.iter().all(|node| current(&node))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_starts_in_any_order_and_drains_when_asked_to_stop() {
    let cluster = Cluster::start(None).await;
    let tenant = cluster.operator().create_tenant("patient", json!({}), chrono::Utc::now()).await;
    for part in [Part::Gateway, Part::Worker, Part::Ledger, Part::ControlPlane] {
        assert!(cluster.stop(part), "{part:?} ends well");
    }
    cluster.postgres.pause();
    cluster.run(Part::Gateway);
    until_not_ready(&cluster, Part::Gateway, "no model is ready").await;
    cluster.run(Part::ControlPlane);
    until_not_ready(&cluster, Part::ControlPlane, "waiting for the database").await;
    cluster.run(Part::Ledger);
    until_not_ready(&cluster, Part::Ledger, "").await;
    cluster.run(Part::Worker);
    until_ready(&cluster, Part::Worker).await;
    until_ready(&cluster, Part::Gateway).await;
    assert_eq!(ask(&tenant).await.0, StatusCode::OK);
    cluster.postgres.resume();
    for part in [Part::ControlPlane, Part::Ledger] {
        until_ready(&cluster, part).await;
    }

    // A stream that runs is finished by a gateway, and by a worker, that is asked to stop.
    for part in [Part::Worker, Part::Gateway] {
        let more = json!({"max_tokens": 200, "temperature": 0});
        let mut body = tenant.api.stream("Tell a very long story.", more).await.bytes_stream();
        let mut text = String::from_utf8(body.next().await.unwrap().unwrap().to_vec()).unwrap();
        cluster.ask_to_stop(part);
        until_not_ready(&cluster, part, "stopping").await;
        if part == Part::Gateway {
            // `/readyz` says it first: requests are taken until the stop notice is over.
            until("the gateway takes no request", || async {
                let (status, answer) = ask(&tenant).await;
                match status {
                    StatusCode::OK => return None,
                    StatusCode::SERVICE_UNAVAILABLE => {}
                    other => panic!("{other}: {answer}"),
                }
                assert_eq!(answer["error"]["code"], "gateway_stopping");
                Some(())
            })
            .await;
        }
        while let Some(chunk) = body.next().await {
            text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert!(cluster.ended(part), "{part:?} ends well");
        cluster.run(part);
        cluster.serves().await;
    }
    assert_eq!(ask(&tenant).await.0, StatusCode::OK);
}
