//! The config stream as nodes see it: the whole snapshot, revocation, refusals, leases, retirement, a restored
//! database.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use weir_schemas::config_snapshot::{
    ConfigSnapshot, Limits, Overload, OverloadPolicy, QueueBounds, ResourceType, Resources,
};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::config::config_client::ConfigClient as Stub;
use weir_schemas::rpc::config::node_message::Kind;
use weir_schemas::rpc::config::{Hello, NodeKind, NodeMessage, Revision};
use weir_schemas::rpc::config_client::{ConfigClient, ConfigClientOptions, NodeIdentity, Validate};

use crate::support::{ControlPlane, Installation, eventually, secret};

const GATEWAY: &str = "gtw_00000000000000000000000001";
const SECOND_GATEWAY: &str = "gtw_00000000000000000000000002";
const WORKER: &str = "wrk_00000000000000000000000001";

/// A node that follows until dropped.
struct Follower {
    snapshots: watch::Receiver<Arc<ConfigSnapshot>>,
    _tasks: JoinSet<()>,
    dir: tempfile::TempDir,
}

fn kind(node: &str) -> NodeKind {
    if node.starts_with("gtw") { NodeKind::Gateway } else { NodeKind::Worker }
}

fn follow(plane: &ControlPlane, node: &str, validate: Validate, dir: tempfile::TempDir) -> Follower {
    let client = ConfigClient::new(ConfigClientOptions {
        control_plane: plane.rpc.clone(),
        secret: secret(),
        snapshot_path: dir.path().join("snapshot.json"),
        identity: NodeIdentity {
            node_id: node.to_owned(),
            kind: kind(node),
            instance: "ins_00000000000000000000000001".into(),
            address: "http://127.0.0.1:7000".into(),
            pool: if kind(node) == NodeKind::Worker { "default".into() } else { String::new() },
        },
        validate,
    });
    let snapshots = client.snapshots();
    let mut tasks = JoinSet::new();
    tasks.spawn(client.run(CancellationToken::new()));
    Follower { snapshots, _tasks: tasks, dir }
}

fn willing() -> Validate {
    Arc::new(|_, _| Ok(()))
}

impl Follower {
    async fn until<T>(&mut self, what: &str, check: impl Fn(&ConfigSnapshot) -> Option<T>) -> T {
        let snapshots = self.snapshots.clone();
        eventually(what, async || check(&snapshots.borrow())).await
    }
}

/// One stream by hand, without a client that reconnects: the outcome of the first update.
async fn subscribe(
    plane: &ControlPlane,
    hello: Hello,
    secret: &InternalSecret,
) -> Result<Revision, tonic::Status> {
    let channel =
        tonic::transport::Endpoint::from_shared(plane.rpc.clone()).unwrap().connect().await.unwrap();
    let mut stub = Stub::with_interceptor(channel, secret.attach());
    let first = NodeMessage { kind: Some(Kind::Hello(hello)) };
    // Open until the answer has come: a stream that its node ends is ended.
    let (outgoing, messages) = tokio::sync::mpsc::channel(1);
    outgoing.send(first).await.unwrap();
    let mut updates =
        stub.subscribe(tokio_stream::wrappers::ReceiverStream::new(messages)).await?.into_inner();
    Ok(updates.message().await?.unwrap().revision.unwrap())
}

fn hello(node: &str, address: &str) -> Hello {
    Hello {
        node_id: node.into(),
        kind: kind(node).into(),
        instance: "ins_00000000000000000000000001".into(),
        address: if address.is_empty() { "http://127.0.0.1:7000".into() } else { address.into() },
        pool: "default".into(),
        held: Vec::new(),
        revision: None,
    }
}

pub(crate) async fn try_register(plane: &ControlPlane) -> Result<Revision, tonic::Status> {
    subscribe(plane, hello(GATEWAY, ""), &secret()).await
}

pub(crate) async fn register(plane: &ControlPlane, node: &str, address: &str) {
    subscribe(plane, hello(node, address), &secret()).await.unwrap();
}

/// The limits of the test below, and the one gateway's lease on all of them.
fn check_limits(resources: &Resources, tenant: &str) {
    let model = &resources.tenants[0].model_limits["m-latest"];
    assert_eq!((model.input_tokens_per_minute, model.max_output_tokens), (Some(500), Some(5)));
    let lease = &resources.leases[0];
    assert_eq!((lease.gateway.to_string().as_str(), lease.tenant.to_string()), (GATEWAY, tenant.to_owned()));
    assert_eq!(
        lease.share,
        Limits { tokens_per_minute: Some(1000), ..Limits::default() },
        "only what is shared out"
    );
    assert_eq!(
        lease.model_shares["m-latest"],
        Limits { input_tokens_per_minute: Some(500), ..Limits::default() }
    );
}

#[tokio::test]
async fn a_node_gets_everything_and_a_revoked_key_goes() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let body = json!({
        "name": "acme", "limits": {"tokens_per_minute": 1000, "max_output_tokens": 10},
        "model_limits": {"m-latest": {"input_tokens_per_minute": 500, "max_output_tokens": 5}},
    });
    let tenant = plane.post("/api/v1/tenants", body).await.expect(201)["id"].as_str().unwrap().to_owned();
    let (key, _) = plane.key(&tenant, &["inference"]).await;
    let version = plane.version("m").await;
    let alias = json!({"name": "m-latest", "targets": [{"version_id": version, "weight": 1}]});
    plane.post("/api/v1/aliases", alias).await.expect(201);
    let shrink = json!({"policy": "shrink", "max_output_tokens": 7, "max_depth": 3});
    let deployment = json!({"version_id": version, "pool": "default", "overload": {"batch": shrink}});
    plane.post("/api/v1/deployments", deployment).await.expect(201);
    let path = format!("/api/v1/tenants/{tenant}");
    plane.send("PATCH", &path, &plane.admin, &[], Some(&json!({"may_overflow": true}))).await.expect(200);

    let mut gateway = follow(&plane, GATEWAY, willing(), tempfile::tempdir().unwrap());
    let _worker = follow(&plane, WORKER, willing(), tempfile::tempdir().unwrap());
    let resources = gateway
        .until("the whole snapshot", |snapshot| {
            (snapshot.resources.replicas.len() == 1).then(|| snapshot.resources.clone())
        })
        .await;
    assert_eq!(resources.tenants[0].id.to_string(), tenant);
    assert_eq!(
        resources.keys.iter().map(|key| key.id.to_string()).collect::<Vec<_>>(),
        std::slice::from_ref(&key)
    );
    assert_eq!(
        (resources.aliases[0].name.as_str(), resources.aliases[0].targets[0].version.to_string()),
        ("m-latest", version.clone())
    );
    assert_eq!((resources.versions[0].id.to_string(), resources.versions[0].model.as_str()), (version, "m"));
    assert_eq!(resources.deployments[0].pool, "default");
    let bounds = QueueBounds { max_depth: 3, ..QueueBounds::default() };
    let shrink = OverloadPolicy::Shrink { max_output_tokens: 7, bounds };
    assert_eq!(resources.deployments[0].overload, Overload { batch: shrink, ..Overload::default() });
    assert!(resources.tenants[0].may_overflow);
    assert_eq!(
        (resources.replicas[0].worker.to_string().as_str(), resources.replicas[0].address.as_str()),
        (WORKER, "http://127.0.0.1:7000")
    );
    assert_eq!(
        (resources.verification_keys.len(), resources.verification_keys[0].issuer.as_str()),
        (1, "weir")
    );
    check_limits(&resources, &tenant);

    let path = format!("/api/v1/tenants/{tenant}/keys/{key}");
    plane.send("DELETE", &path, &plane.admin, &[], None).await.expect(204);
    gateway.until("the revocation", |snapshot| snapshot.resources.keys.is_empty().then_some(())).await;

    // What was applied is shown to operators, at the published revision.
    let published = plane.get("/api/v1/config").await.expect(200);
    eventually("the acknowledgement", async || {
        let node = plane.get(&format!("/api/v1/nodes/{GATEWAY}")).await.expect(200);
        (node["revision"] == published["revision"] && node["connected"] == true).then_some(())
    })
    .await;
    assert!(plane.metrics().contains("connected_nodes{kind=\"gateway\"} 1"));
    plane.stop().await;
}

#[tokio::test]
async fn expired_keys_leave_the_allow_list_without_an_event() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    plane.key(&tenant, &["inference"]).await;
    let mut gateway = follow(&plane, GATEWAY, willing(), tempfile::tempdir().unwrap());
    gateway.until("the key", |snapshot| (snapshot.resources.keys.len() == 1).then_some(())).await;
    installation.advance(366 * 86_400);
    gateway.until("its expiry", |snapshot| snapshot.resources.keys.is_empty().then_some(())).await;
    plane.stop().await;
}

#[tokio::test]
async fn two_control_planes_publish_each_others_changes() {
    let installation = Installation::new();
    let (one, two) = (installation.start().await, installation.start().await);
    let mut gateway = follow(&two, GATEWAY, willing(), tempfile::tempdir().unwrap());
    one.tenant("acme").await;
    gateway
        .until("the other's tenant", |snapshot| (snapshot.resources.tenants.len() == 1).then_some(()))
        .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_refused_type_is_seen_with_its_reason_and_holds_back_no_other() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let picky: Validate = Arc::new(|kind, resources| match kind {
        ResourceType::Tenants if !resources.tenants.is_empty() => {
            Err("too many tenants for this node".into())
        }
        _ => Ok(()),
    });
    let mut gateway = follow(&plane, GATEWAY, picky, tempfile::tempdir().unwrap());
    plane.key(&tenant, &["inference"]).await;
    gateway.until("the keys", |snapshot| (snapshot.resources.keys.len() == 1).then_some(())).await;
    let refused = eventually("the refusal", async || {
        let node = plane.get(&format!("/api/v1/nodes/{GATEWAY}")).await.expect(200);
        let held = node["resources"].as_array().unwrap().clone();
        held.into_iter().find(|held| held["resource_type"] == "tenants")
    })
    .await;
    assert_eq!(
        (refused["outcome"].as_str(), refused["reason"].as_str()),
        (Some("refused"), Some("too many tenants for this node"))
    );
    plane.stop().await;
}

#[tokio::test]
async fn the_first_gateway_holds_the_leases_until_it_is_retired() {
    let installation = Installation::new();
    let plane = installation.start().await;
    plane.tenant("acme").await;
    let mut first = follow(&plane, GATEWAY, willing(), tempfile::tempdir().unwrap());
    let epoch =
        first.until("a lease", |snapshot| snapshot.resources.leases.first().map(|lease| lease.epoch)).await;
    let mut second = follow(&plane, SECOND_GATEWAY, willing(), tempfile::tempdir().unwrap());
    let holder =
        |snapshot: &ConfigSnapshot| snapshot.resources.leases.first().map(|lease| lease.gateway.to_string());
    assert_eq!(second.until("the leases", holder).await, GATEWAY);

    plane.send("DELETE", &format!("/api/v1/nodes/{GATEWAY}"), &plane.admin, &[], None).await.expect(204);
    let moved = second
        .until("the lease to move", |snapshot| {
            let lease = snapshot.resources.leases.first()?;
            (lease.gateway.to_string() == SECOND_GATEWAY).then_some(lease.epoch)
        })
        .await;
    assert!(moved > epoch, "the newer lease fences the older");
    let refused = subscribe(&plane, hello(GATEWAY, ""), &secret()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    eventually("the retired node to be off", async || {
        let node = plane.get(&format!("/api/v1/nodes/{GATEWAY}")).await.expect(200);
        (node["connected"] == false && node["retired_at"].is_string()).then_some(())
    })
    .await;
    plane.stop().await;
}

#[tokio::test]
async fn only_a_change_of_what_a_node_says_is_an_event() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let events = async || {
        let page = plane.get(&format!("/api/v1/events?stream={WORKER}")).await.expect(200);
        page["data"].as_array().unwrap().len()
    };
    for (address, expected) in [("http://a:1", 1), ("http://a:1", 1), ("http://b:2", 2)] {
        register(&plane, WORKER, address).await;
        assert_eq!(events().await, expected, "{address}");
    }
    plane.stop().await;
}

#[tokio::test]
async fn strangers_and_nonsense_are_refused() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let tenant = plane.tenant("acme").await;
    let (_, token) = plane.key(&tenant, &["tenant:admin"]).await;
    let code = async |hello: Hello, secret: &InternalSecret| {
        subscribe(&plane, hello, secret).await.unwrap_err().code()
    };
    for wrong in [InternalSecret::new(&"f".repeat(32)).unwrap(), InternalSecret::new(&token).unwrap()] {
        assert_eq!(code(hello(GATEWAY, ""), &wrong).await, Code::Unauthenticated);
    }
    // No metadata at all.
    let channel =
        tonic::transport::Endpoint::from_shared(plane.rpc.clone()).unwrap().connect().await.unwrap();
    let anonymous = Stub::new(channel).subscribe(tokio_stream::iter([NodeMessage::default()])).await;
    assert_eq!(anonymous.unwrap_err().code(), Code::Unauthenticated);
    for bad in [
        hello("ten_00000000000000000000000001", ""),
        hello(WORKER, "nowhere"),
        Hello { kind: NodeKind::Gateway.into(), ..hello(WORKER, "") },
        Hello { instance: "x".into(), ..hello(WORKER, "") },
        Hello { pool: String::new(), ..hello(WORKER, "") },
    ] {
        assert_eq!(code(bad, &secret()).await, Code::InvalidArgument);
    }
    plane.stop().await;
}

#[tokio::test]
async fn a_node_from_the_future_begins_a_new_epoch() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let now = subscribe(&plane, hello(GATEWAY, ""), &secret()).await.unwrap();
    let ahead = Revision { position: now.position + 1_000, ..now };
    let after = eventually("the new epoch", async || {
        let hello = Hello { revision: Some(ahead), ..hello(GATEWAY, "") };
        let revision = subscribe(&plane, hello, &secret()).await.unwrap();
        (revision.epoch > now.epoch).then_some(revision)
    })
    .await;
    assert_eq!(after.epoch, now.epoch + 1, "once, however often the node says so");
    let behind =
        subscribe(&plane, Hello { revision: Some(now), ..hello(GATEWAY, "") }, &secret()).await.unwrap();
    assert_eq!(behind.epoch, after.epoch);
    plane.stop().await;
}

#[tokio::test]
async fn a_node_starts_from_disk_and_is_sent_only_what_differs() {
    let installation = Installation::new();
    let plane = installation.start().await;
    plane.tenant("acme").await;
    let mut gateway = follow(&plane, GATEWAY, willing(), tempfile::tempdir().unwrap());
    gateway.until("the tenant", |snapshot| (snapshot.resources.tenants.len() == 1).then_some(())).await;
    let dir = std::mem::replace(&mut gateway.dir, tempfile::tempdir().unwrap());
    drop(gateway);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noting: Validate = {
        let seen = seen.clone();
        Arc::new(move |kind, _| {
            seen.lock().unwrap().push(kind);
            Ok(())
        })
    };
    let mut gateway = follow(&plane, GATEWAY, noting, dir);
    assert_eq!(gateway.snapshots.borrow().resources.tenants.len(), 1, "from disk");
    plane.tenant("second").await;
    gateway
        .until("the second tenant", |snapshot| (snapshot.resources.tenants.len() == 2).then_some(()))
        .await;
    gateway.until("its lease", |snapshot| (snapshot.resources.leases.len() == 2).then_some(())).await;
    let mut kinds = seen.lock().unwrap().clone();
    kinds.dedup();
    assert_eq!(kinds, [ResourceType::Tenants, ResourceType::Leases]);
    plane.stop().await;
}

#[tokio::test]
async fn what_a_node_holds_is_known_again_after_a_restart_of_the_control_plane() {
    let installation = Installation::new();
    let plane = installation.start().await;
    let admin = plane.admin.clone();
    plane.tenant("acme").await;
    let mut gateway = follow(&plane, GATEWAY, willing(), tempfile::tempdir().unwrap());
    gateway.until("the lease", |snapshot| (snapshot.resources.leases.len() == 1).then_some(())).await;
    let dir = std::mem::replace(&mut gateway.dir, tempfile::tempdir().unwrap());
    drop(gateway);
    plane.stop().await;

    let mut plane = installation.start().await;
    plane.admin = admin;
    let _gateway = follow(&plane, GATEWAY, willing(), dir);
    let node = eventually("the node is seen with what is published", async || {
        let published = plane.get("/api/v1/config").await.expect(200);
        let node = plane.get(&format!("/api/v1/nodes/{GATEWAY}")).await.expect(200);
        (node["revision"] == published["revision"]).then_some(node)
    })
    .await;
    let resources = node["resources"].as_array().unwrap();
    assert_eq!(resources.len(), ResourceType::ALL.len());
    assert!(resources.iter().all(|held| held["outcome"] == "applied"));
    plane.stop().await;
}
