//! Keys, scopes, signing keys: who gets in, who does not, and how a rotation overlaps.

use std::os::unix::fs::PermissionsExt;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::support::{Installation, START_S, private_keys};

fn token(seed: &[u8; 32], kid: &str, claims: &Value) -> String {
    use ed25519_dalek::pkcs8::EncodePrivateKey as _;
    let der = ed25519_dalek::SigningKey::from_bytes(seed).to_pkcs8_der().unwrap();
    let mut header = Header::new(Algorithm::EdDSA);
    header.kid = Some(kid.to_owned());
    jsonwebtoken::encode(&header, claims, &EncodingKey::from_ed_der(der.as_bytes())).unwrap()
}

#[tokio::test]
async fn the_first_start_gives_an_admin_token_once_and_keeps_private_keys_to_itself() {
    let installation = Installation::new();
    let plane = installation.start().await;
    plane.get("/api/v1/tenants").await.expect(200);
    let tenant = plane.tenant("acme").await;
    let admin = plane.admin.clone();
    plane.stop().await;

    let again = installation.start().await;
    assert_eq!(again.admin, "", "no second bootstrap token");
    again.send("GET", &format!("/api/v1/tenants/{tenant}"), &admin, &[], None).await.expect(200);
    let files = installation.data_dir().join("signing-keys");
    for entry in std::fs::read_dir(&files).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::metadata(&files).unwrap().permissions().mode() & 0o777, 0o700);
    let issued = weir_server::issue_admin_token(&installation.config(), &installation.clock()).await.unwrap();
    again.send("GET", "/api/v1/tenants", &issued, &[], None).await.expect(200);
    again.stop().await;
}

#[tokio::test]
async fn a_token_needs_signature_claims_and_the_allow_list() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let (tenant, other) = (plane.tenant("acme").await, plane.tenant("other").await);
    let (key, good) = plane.key(&tenant, &["keys:write"]).await;
    let path = format!("/api/v1/tenants/{tenant}/keys");
    let call = async |token: &str| plane.send("GET", &path, token, &[], None).await.status.as_u16();
    assert_eq!(call(&good).await, 200);

    let (kid, seed) = private_keys(&installation.data_dir()).remove(0);
    let claims = json!({"iss": "weir", "aud": "weir", "sub": tenant, "jti": key, "scope": "keys:write",
                        "iat": START_S, "exp": START_S + 3600});
    let with = |name: &str, value: Value| {
        let mut changed = claims.clone();
        changed[name] = value;
        token(&seed, &kid, &changed)
    };
    assert_eq!(call(&token(&seed, &kid, &claims)).await, 200, "the claims are right as they stand");
    let unknown = "key_00000000000000000000000001";
    for (what, bad) in [
        ("minted with the stolen signing key", with("jti", json!(unknown))),
        ("another tenant's key", with("sub", json!(other))),
        ("issuer", with("iss", json!("elsewhere"))),
        ("audience", with("aud", json!("elsewhere"))),
        ("expired", with("exp", json!(START_S))),
        ("another's signature", token(&[9; 32], &kid, &claims)),
        ("unknown signing key", token(&seed, "sig_00000000000000000000000001", &claims)),
        ("platform", with("sub", json!("platform"))),
        ("no token", "x.y.z".into()),
        ("endless", "x".repeat(5_000)),
    ] {
        assert_eq!(call(&bad).await, 401, "{what}");
    }
    // The token cannot widen what the allow-list grants, nor the other way round.
    assert_eq!(call(&with("scope", json!("inference"))).await, 403);
    let (_, narrow) = plane.key(&tenant, &["inference"]).await;
    assert_eq!(call(&narrow).await, 403);

    // A suspended tenant is refused as if its keys were revoked; so is an expired or revoked key.
    let tenant_path = format!("/api/v1/tenants/{tenant}");
    let state = async |state: &str| {
        let body = json!({"state": state});
        plane.send("PATCH", &tenant_path, &plane.admin, &[], Some(&body)).await.expect(200)
    };
    state("suspended").await;
    assert_eq!(call(&good).await, 401);
    state("active").await;
    assert_eq!(call(&good).await, 200);
    let revoke =
        async || plane.send("DELETE", &format!("{path}/{key}"), &plane.admin, &[], None).await.expect(204);
    revoke().await;
    assert_eq!(call(&good).await, 401);
    revoke().await;
    let shown = plane.get(&format!("{path}/{key}")).await.expect(200);
    assert!(shown["revoked_at"].is_string());
    let (_, short) = plane.key(&tenant, &["keys:write"]).await;
    installation.advance(366 * 86_400);
    assert_eq!(call(&short).await, 401);
    plane.stop().await;
}

#[tokio::test]
async fn a_tenant_makes_its_own_keys_and_cannot_exceed_itself() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let (tenant, other) = (plane.tenant("acme").await, plane.tenant("other").await);
    let (_, writer) = plane.key(&tenant, &["keys:write"]).await;
    let (_, owner) = plane.key(&tenant, &["tenant:admin"]).await;
    let keys = |tenant: &str| format!("/api/v1/tenants/{tenant}/keys");
    let make = async |tenant: &str, token: &str, scopes: Value| {
        let body = json!({"name": "k", "scopes": scopes});
        plane.send("POST", &keys(tenant), token, &[], Some(&body)).await
    };
    let made = make(&tenant, &writer, json!(["inference", "usage:read"])).await.expect(201);
    make(&tenant, &writer, json!(["tenant:admin"])).await.expect(403);
    make(&tenant, &owner, json!(["tenant:admin"])).await.expect(201);
    for scopes in
        [json!(["platform:admin"]), json!(["everything"]), json!([]), json!(["inference", "inference"])]
    {
        make(&tenant, &owner, scopes).await.expect(400);
    }
    make(&other, &owner, json!(["inference"])).await.expect(404);
    let key = made["id"].as_str().unwrap();
    let (_, stranger) = plane.key(&other, &["tenant:admin"]).await;
    for path in [format!("{}/{key}", keys(&tenant)), format!("{}/{key}", keys(&other))] {
        plane.send("GET", &path, &stranger, &[], None).await.expect(404);
        plane.send("DELETE", &path, &stranger, &[], None).await.expect(404);
    }
    plane.send("GET", &format!("{}/{key}", keys(&tenant)), &owner, &[], None).await.expect(200);
    plane.send("GET", &format!("/api/v1/tenants/{tenant}"), &owner, &[], None).await.expect(200);
    plane.stop().await;
}

#[tokio::test]
async fn signing_keys_rotate_with_overlap() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let (old_key, old) = plane.key(&tenant, &["keys:write"]).await;
    let path = format!("/api/v1/tenants/{tenant}/keys");
    let call = async |token: &str| plane.send("GET", &path, token, &[], None).await.status.as_u16();
    let jwks = async || {
        let keys = plane.send("GET", "/.well-known/jwks.json", "", &[], None).await.expect(200);
        keys["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key["kid"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = jwks().await.remove(0);
    plane
        .send("POST", &format!("/api/v1/signing-keys/{first}/retire?force=true"), &plane.admin, &[], None)
        .await
        .expect(409);

    installation.advance(1);
    let second = plane.send("POST", "/api/v1/signing-keys/rotate", &plane.admin, &[], None).await.expect(201);
    assert_eq!(second["state"], "active");
    assert_eq!(jwks().await.len(), 2, "both verify");
    assert_eq!(private_keys(&installation.data_dir()).len(), 1, "what signs no more is not kept");
    assert_eq!(call(&old).await, 200);
    let (_, new) = plane.key(&tenant, &["keys:write"]).await;
    assert_eq!(call(&new).await, 200);
    let retire = async |query: &str| {
        plane
            .send("POST", &format!("/api/v1/signing-keys/{first}/retire{query}"), &plane.admin, &[], None)
            .await
    };
    let in_use = retire("").await.expect(409);
    assert!(in_use["detail"].as_str().unwrap().contains("good until"), "{in_use}");
    // The bootstrap token and the old key still hang on it: make a new admin key, then let both go.
    let admin = plane.post("/api/v1/platform/keys", json!({"name": "alice"})).await.expect(201);
    let admin = admin["token"].as_str().unwrap();
    plane.send("DELETE", &format!("{path}/{old_key}"), admin, &[], None).await.expect(204);
    let listed = plane.send("GET", "/api/v1/platform/keys", admin, &[], None).await.expect(200);
    let bootstrap = listed["data"][0]["id"].as_str().unwrap();
    plane.send("DELETE", &format!("/api/v1/platform/keys/{bootstrap}"), admin, &[], None).await.expect(204);
    let last = listed["data"][1]["id"].as_str().unwrap();
    plane.send("DELETE", &format!("/api/v1/platform/keys/{last}"), admin, &[], None).await.expect(409);
    let retired = plane.send("POST", &format!("/api/v1/signing-keys/{first}/retire"), admin, &[], None).await;
    assert_eq!(retired.expect(200)["state"], "retired");
    assert_eq!(jwks().await, [second["id"].as_str().unwrap()]);
    assert_eq!((call(&new).await, call(&old).await), (200, 401));
    plane.stop().await;
}
