use super::*;
use crate::config_snapshot::{Key, Limits, Revision};
use crate::ids::{KeyId, TenantId};

fn client(snapshot_path: PathBuf, validate: Validate) -> ConfigClient {
    ConfigClient::new(ConfigClientOptions {
        control_plane: "http://127.0.0.1:1".into(),
        secret: InternalSecret::new(&"s".repeat(32)).unwrap(),
        snapshot_path,
        identity: NodeIdentity {
            node_id: "gtw_test".into(),
            kind: NodeKind::Gateway,
            instance: "ins_test".into(),
            address: "http://127.0.0.1:2".into(),
            pool: String::new(),
        },
        validate,
    })
}

fn set(name: &str, json: &str) -> ResourceSet {
    ResourceSet { resource_type: name.into(), digest: digest(json.as_bytes()), json: json.into() }
}

fn keys_json(count: u128) -> String {
    let keys: Vec<Key> = (0..count)
        .map(|n| Key {
            id: KeyId::from_u128(n),
            tenant: TenantId::from_u128(1),
            scopes: vec![],
            limits: Limits::default(),
            expires_at: chrono::DateTime::UNIX_EPOCH,
        })
        .collect();
    serde_json::to_string(&keys).unwrap()
}

fn update(position: u64, sets: Vec<ResourceSet>) -> ConfigUpdate {
    ConfigUpdate { revision: Some(Revision { epoch: 1, position }.into()), sets }
}

#[test]
fn a_refused_type_does_not_hold_back_another_and_both_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.json");
    let allow: Validate = Arc::new(|_, _| Ok(()));
    let first = client(path.clone(), allow.clone());
    let replies = first.apply(update(5, vec![set("keys", &keys_json(3))]));
    assert!(matches!(&replies[..], [Kind::Applied(applied)] if applied.resource_type == "keys"));

    let replies = first.apply(update(6, vec![set("tenants", "[{]"), set("keys", &keys_json(2))]));
    assert!(
        matches!(&replies[..], [Kind::Refused(refused), Kind::Applied(_)] if refused.reason.contains("cannot be parsed"))
    );
    let snapshot = first.snapshots().borrow().clone();
    assert_eq!((snapshot.revision.position, snapshot.resources.keys.len()), (6, 2));

    let restarted = client(path.clone(), allow.clone());
    assert_eq!(*restarted.snapshots().borrow(), snapshot);

    std::fs::write(
        &path,
        std::fs::read_to_string(&path)
            .unwrap()
            .replace("\"position\":6", "\"position\":7")
            .replace("key_0", "key_1"),
    )
    .unwrap();
    assert_eq!(
        client(path, allow).snapshots().borrow().revision,
        Revision::default(),
        "a damaged file is passed over"
    );
}

#[test]
fn the_nodes_own_check_and_the_digest_are_heeded() {
    let dir = tempfile::tempdir().unwrap();
    let refuse: Validate = Arc::new(|kind, resources| match kind {
        ResourceType::Keys if resources.keys.len() > 1 => Err("too many keys for this node".into()),
        _ => Ok(()),
    });
    let node = client(dir.path().join("snapshot.json"), refuse);
    let forged = ResourceSet { digest: "sha256:00".into(), ..set("keys", &keys_json(1)) };
    for (bad, reason) in [
        (set("keys", &keys_json(2)), "too many keys for this node"),
        (forged, "digest mismatch"),
        (set("no_such_type", "[]"), "unknown resource type"),
    ] {
        let replies = node.apply(update(1, vec![bad]));
        assert!(
            matches!(&replies[..], [Kind::Refused(refused)] if refused.reason.contains(reason)),
            "{reason}"
        );
    }
    assert!(node.snapshots().borrow().resources.keys.is_empty());
}
