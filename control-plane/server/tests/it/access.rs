//! Who may call what: every operation of the contract, anonymously, with another tenant's key, with too small a
//! scope, and rightly. An operation without an entry here fails the test, as does an entry without an operation.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{ControlPlane, Installation};

/// What an operation asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Access {
    /// Nothing.
    Public,
    /// `platform:admin`.
    Platform,
    /// This scope within the tenant that the path names; another tenant's is not there.
    Tenant(&'static str),
    /// `usage:read`; another tenant's, named in the query, is not there.
    Usage,
}

use Access::{Platform, Public, Tenant, Usage};

const OPERATIONS: &[(&str, &str, Access)] = &[
    ("get", "/healthz", Public),
    ("get", "/readyz", Public),
    ("get", "/metrics", Public),
    ("get", "/openapi.yaml", Public),
    ("get", "/.well-known/jwks.json", Public),
    ("get", "/api/v1/tenants", Platform),
    ("post", "/api/v1/tenants", Platform),
    ("get", "/api/v1/tenants/{tenant_id}", Tenant("tenant:admin")),
    ("patch", "/api/v1/tenants/{tenant_id}", Platform),
    ("get", "/api/v1/tenants/{tenant_id}/keys", Tenant("keys:write")),
    ("post", "/api/v1/tenants/{tenant_id}/keys", Tenant("keys:write")),
    ("get", "/api/v1/tenants/{tenant_id}/keys/{key_id}", Tenant("keys:write")),
    ("delete", "/api/v1/tenants/{tenant_id}/keys/{key_id}", Tenant("keys:write")),
    ("get", "/api/v1/usage", Usage),
    ("get", "/api/v1/costs", Usage),
    ("get", "/api/v1/platform/keys", Platform),
    ("post", "/api/v1/platform/keys", Platform),
    ("delete", "/api/v1/platform/keys/{key_id}", Platform),
    ("get", "/api/v1/models", Platform),
    ("post", "/api/v1/models", Platform),
    ("get", "/api/v1/models/{model_id}", Platform),
    ("get", "/api/v1/versions", Platform),
    ("post", "/api/v1/versions", Platform),
    ("get", "/api/v1/versions/{version_id}", Platform),
    ("get", "/api/v1/aliases", Platform),
    ("post", "/api/v1/aliases", Platform),
    ("get", "/api/v1/aliases/{alias_id}", Platform),
    ("delete", "/api/v1/aliases/{alias_id}", Platform),
    ("put", "/api/v1/aliases/{alias_id}/targets", Platform),
    ("get", "/api/v1/deployments", Platform),
    ("post", "/api/v1/deployments", Platform),
    ("get", "/api/v1/deployments/{deployment_id}", Platform),
    ("patch", "/api/v1/deployments/{deployment_id}", Platform),
    ("delete", "/api/v1/deployments/{deployment_id}", Platform),
    ("get", "/api/v1/price-books", Platform),
    ("post", "/api/v1/price-books", Platform),
    ("get", "/api/v1/price-books/{price_book_id}", Platform),
    ("get", "/api/v1/price-books/{price_book_id}/prices", Platform),
    ("post", "/api/v1/price-books/{price_book_id}/prices", Platform),
    ("get", "/api/v1/signing-keys", Platform),
    ("get", "/api/v1/signing-keys/{signing_key_id}", Platform),
    ("post", "/api/v1/signing-keys/rotate", Platform),
    ("post", "/api/v1/signing-keys/{signing_key_id}/retire", Platform),
    ("get", "/api/v1/nodes", Platform),
    ("get", "/api/v1/nodes/{node_id}", Platform),
    ("delete", "/api/v1/nodes/{node_id}", Platform),
    ("get", "/api/v1/events", Platform),
    ("get", "/api/v1/config", Platform),
];

fn entries() -> BTreeMap<(String, String), Access> {
    let all = OPERATIONS.iter();
    all.map(|(method, path, access)| (((*method).to_owned(), (*path).to_owned()), *access)).collect()
}

/// What the contract says of each operation's security.
fn declared(contract: &Value) -> BTreeMap<(String, String), Value> {
    let mut found = BTreeMap::new();
    for (path, methods) in contract["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            found.insert((method.clone(), path.clone()), operation["security"].clone());
        }
    }
    found
}

fn expected_security(access: Access) -> Value {
    match access {
        Public => json!([{}]),
        Platform => json!([{"token": ["platform:admin"]}]),
        Tenant(scope) => json!([{"token": [scope]}, {"token": ["platform:admin"]}]),
        Usage => json!([{"token": ["usage:read"]}, {"token": ["platform:admin"]}]),
    }
}

/// A path that a right caller could mean.
fn concrete(path: &str, tenant: &str) -> String {
    let nothing = "00000000000000000000000001";
    let mut path = path.replace("{tenant_id}", tenant);
    for (parameter, prefix) in [
        ("{key_id}", "key"),
        ("{model_id}", "mdl"),
        ("{version_id}", "ver"),
        ("{alias_id}", "als"),
        ("{deployment_id}", "dep"),
        ("{price_book_id}", "prb"),
        ("{signing_key_id}", "sig"),
        ("{node_id}", "gtw"),
    ] {
        path = path.replace(parameter, &format!("{prefix}_{nothing}"));
    }
    assert!(!path.contains('{'), "{path}: give its parameter a value");
    path
}

struct Callers {
    tenant: String,
    stranger_tenant: String,
    stranger: String,
    small: String,
    by_scope: BTreeMap<&'static str, String>,
}

async fn callers(plane: &ControlPlane) -> Callers {
    let (tenant, stranger_tenant) = (plane.tenant("acme").await, plane.tenant("stranger").await);
    let all = ["inference", "usage:read", "keys:write", "tenant:admin"];
    let (_, stranger) = plane.key(&stranger_tenant, &all).await;
    let (_, small) = plane.key(&tenant, &["inference"]).await;
    let mut by_scope = BTreeMap::new();
    for scope in ["usage:read", "keys:write", "tenant:admin"] {
        by_scope.insert(scope, plane.key(&tenant, &[scope]).await.1);
    }
    Callers { tenant, stranger_tenant, stranger, small, by_scope }
}

async fn status(plane: &ControlPlane, method: &str, path: &str, token: &str) -> u16 {
    let body = (method != "get" && method != "delete").then(|| json!({}));
    let answer = plane.send(&method.to_uppercase(), path, token, &[], body.as_ref()).await;
    answer.status.as_u16()
}

#[tokio::test]
async fn every_operation_refuses_who_may_not_call_it() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let contract = plane.send("GET", "/docs/openapi.json", "", &[], None).await.expect(200);
    let declared = declared(&contract);
    let entries = entries();
    assert_eq!(
        entries.keys().collect::<Vec<_>>(),
        declared.keys().collect::<Vec<_>>(),
        "each operation needs an entry in this table, and each entry an operation"
    );
    let callers = callers(&plane).await;
    for ((method, path), access) in entries {
        assert_eq!(declared[&(method.clone(), path.clone())], expected_security(access), "{method} {path}");
        let concrete = concrete(&path, &callers.tenant);
        let query = if access == Usage { "?start_time=0" } else { "" };
        let own = format!("{concrete}{query}");
        let call = async |path: &str, token: &str| status(&plane, &method, path, token).await;
        let name = format!("{method} {path}");
        if access == Public {
            assert_eq!(call(&own, "").await, 200, "{name}");
            continue;
        }
        assert_eq!(call(&own, "").await, 401, "{name} anonymously");
        assert_eq!(call(&own, "nonsense").await, 401, "{name} with nonsense");
        assert_eq!(call(&own, &callers.small).await, 403, "{name} with too small a scope");
        match access {
            Platform => {
                assert_eq!(call(&own, &callers.stranger).await, 403, "{name} by a tenant");
                assert_eq!(call(&own, &callers.by_scope["tenant:admin"]).await, 403, "{name} by its tenant");
            }
            Tenant(scope) => {
                assert_eq!(call(&own, &callers.stranger).await, 404, "{name} by another tenant");
                assert_ne!(call(&own, &callers.by_scope[scope]).await / 100, 5, "{name}");
                assert!(![401, 403].contains(&call(&own, &callers.by_scope[scope]).await), "{name} rightly");
            }
            Usage => {
                let named = format!("{own}&tenant_id={}", callers.tenant);
                assert_eq!(call(&named, &callers.stranger).await, 404, "{name} of another tenant");
                assert_eq!(call(&named, &callers.by_scope["usage:read"]).await, 200, "{name} rightly");
                let strangers = format!("{own}&tenant_id={}", callers.stranger_tenant);
                assert_eq!(call(&strangers, &callers.by_scope["usage:read"]).await, 404, "{name}");
            }
            Public => {}
        }
        let as_operator = call(&own, &plane.admin).await;
        assert!(
            ![401, 403, 405].contains(&as_operator) && as_operator < 500,
            "{name} by an operator: {as_operator}"
        );
    }
    plane.stop().await;
}
