//! Postgres away: 503 and not 500, nothing published is lost, and all comes back by itself.

use serde_json::json;

use crate::private_postgres::PrivatePostgres;
use crate::support::{Installation, eventually};

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
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
        answer.expect(503);
    }
    assert_eq!(plane.send("GET", "/healthz", "", &[], None).await.status, 200);

    postgres.resume();
    eventually("readiness", async || {
        (plane.send("GET", "/readyz", "", &[], None).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(plane.get(&path).await.expect(200)["name"], "acme");
    assert_eq!(plane.get("/api/v1/config").await.expect(200)["revision"], published["revision"]);
    plane.tenant("late").await;
    plane.stop().await;
}
