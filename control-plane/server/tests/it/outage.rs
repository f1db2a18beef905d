//! Postgres away: 503 and not 500, nothing published is lost, and all comes back by itself.

use std::time::Duration;

use serde_json::json;

use crate::private_postgres::PrivatePostgres;
use crate::support::{Answer, ControlPlane, Installation, eventually};

/// Far above any bound of the control plane's own: an answer that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn ready_again(plane: &ControlPlane) {
    eventually("readiness", async || {
        (plane.send("GET", "/readyz", "", &[], None).await.status == 200).then_some(())
    })
    .await;
}

fn expect_unavailable(answer: Answer) -> String {
    assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    answer.expect(503)["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_outage_of_postgres_is_a_503_and_heals_by_itself() {
    let postgres = PrivatePostgres::start();
    let installation = Installation::on(&postgres);
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let path = format!("/api/v1/tenants/{tenant}");
    let events = plane.get("/api/v1/events").await.expect(200);
    let last = events["data"].as_array().unwrap().last().unwrap()["position"].clone();
    let published = eventually("the config to hold the tenant", async || {
        let config = plane.get("/api/v1/config").await.expect(200);
        config["revision"].as_str().unwrap().ends_with(&format!(".{last}")).then_some(config)
    })
    .await;

    postgres.pause();
    for answer in [
        plane.get(&path).await,
        plane.get("/api/v1/usage?start_time=0").await,
        plane.post("/api/v1/tenants", json!({"name": "late"})).await,
        plane.send("GET", "/.well-known/jwks.json", "", &[], None).await,
        plane.send("GET", "/readyz", "", &[], None).await,
    ] {
        expect_unavailable(answer);
    }
    assert_eq!(plane.send("GET", "/healthz", "", &[], None).await.status, 200);
    // From then on nobody waits to learn it, and the reason is the driver's own.
    eventually("the reason in /readyz", async || {
        let why = expect_unavailable(plane.send("GET", "/readyz", "", &[], None).await);
        why.contains("the database is away: ").then_some(())
    })
    .await;

    postgres.resume();
    ready_again(&plane).await;
    assert_eq!(plane.get(&path).await.expect(200)["name"], "acme");
    assert_eq!(plane.get("/api/v1/config").await.expect(200)["revision"], published["revision"]);
    plane.tenant("late").await;
    plane.stop().await;
}

#[tokio::test]
async fn a_crash_of_postgres_loses_nothing_that_was_answered() {
    let postgres = PrivatePostgres::start();
    let installation = Installation::on(&postgres);
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    postgres.crash();
    let path = format!("/api/v1/tenants/{tenant}");
    expect_unavailable(plane.get(&path).await);
    expect_unavailable(plane.post("/api/v1/tenants", json!({"name": "lost"})).await);
    postgres.resume();
    ready_again(&plane).await;
    assert_eq!(plane.get(&path).await.expect(200)["name"], "acme");
    let tenants = plane.get("/api/v1/tenants").await.expect(200);
    assert_eq!(tenants["data"].as_array().unwrap().len(), 1, "what was answered with 503 did not happen");
    plane.stop().await;
}

#[tokio::test]
async fn a_postgres_that_hangs_is_a_503_too_in_bounded_time() {
    let postgres = PrivatePostgres::start();
    let installation = Installation::on(&postgres);
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let path = format!("/api/v1/tenants/{tenant}");
    postgres.freeze();
    let all = async {
        let late = json!({"name": "late"});
        let (read, write, ready) = tokio::join!(
            plane.get(&path),
            plane.post("/api/v1/tenants", late),
            plane.send("GET", "/readyz", "", &[], None),
        );
        [read, write, ready].map(expect_unavailable)
    };
    tokio::time::timeout(PATIENCE, all).await.expect("each is answered");
    assert_eq!(plane.send("GET", "/healthz", "", &[], None).await.status, 200);
    postgres.thaw();
    ready_again(&plane).await;
    assert_eq!(plane.get(&path).await.expect(200)["name"], "acme");
    plane.tenant("after").await;
    plane.stop().await;
}

#[tokio::test]
async fn a_control_plane_starts_before_its_database() {
    let postgres = PrivatePostgres::start();
    let installation = Installation::on(&postgres);
    postgres.pause();
    let mut plane = installation.begin().await;
    assert_eq!(plane.send("GET", "/healthz", "", &[], None).await.status, 200);
    let why = expect_unavailable(plane.send("GET", "/readyz", "", &[], None).await);
    assert!(why.contains("waiting for the database"), "{why}");
    expect_unavailable(plane.get("/api/v1/tenants").await);
    let refused = crate::stream::try_register(&plane).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    postgres.resume();
    plane.prepared().await;
    assert!(!plane.admin.is_empty(), "the first token is made once there is a database");
    ready_again(&plane).await;
    plane.tenant("acme").await;
    plane.stop().await;
}

#[tokio::test]
async fn a_stop_while_waiting_for_the_database_ends_it() {
    let postgres = PrivatePostgres::start();
    let installation = Installation::on(&postgres);
    postgres.pause();
    let mut plane = installation.begin().await;
    plane.begin_stop();
    plane.prepared().await;
    tokio::time::timeout(PATIENCE, plane.stop()).await.expect("it ends");
}
