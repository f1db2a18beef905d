use super::*;
use crate::config_snapshot::{Key, Limits, ModelLimits};
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
            model_limits: ModelLimits::new(),
            expires_at: chrono::DateTime::UNIX_EPOCH,
        })
        .collect();
    serde_json::to_string(&keys).unwrap()
}

fn update(position: u64, sets: Vec<ResourceSet>) -> ConfigUpdate {
    ConfigUpdate { revision: Some(Revision { epoch: 1, position }.into()), sets, all: Vec::new() }
}

#[test]
fn a_refused_type_does_not_hold_back_another_and_both_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot.json");
    let allow: Validate = Arc::new(|_, _| Ok(()));
    let first = client(path.clone(), allow.clone());
    let replies = first.apply(update(5, vec![set("keys", &keys_json(3))])).unwrap();
    assert!(matches!(&replies[..], [Kind::Applied(applied)] if applied.resource_type == "keys"));

    let replies = first.apply(update(6, vec![set("tenants", "[{]"), set("keys", &keys_json(2))])).unwrap();
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
        let replies = node.apply(update(1, vec![bad])).unwrap();
        assert!(
            matches!(&replies[..], [Kind::Refused(refused)] if refused.reason.contains(reason)),
            "{reason}"
        );
    }
    assert!(node.snapshots().borrow().resources.keys.is_empty());
}

fn all_of(snapshot: &ConfigSnapshot, change: (&str, &str)) -> Vec<HeldResources> {
    let held = |&kind: &ResourceType| HeldResources {
        resource_type: kind.as_str().to_owned(),
        digest: match kind.as_str() == change.0 {
            true => digest(change.1.as_bytes()),
            false => digest(&snapshot.resources.to_json(kind)),
        },
    };
    ResourceType::ALL.iter().map(held).collect()
}

#[test]
fn an_older_revision_or_a_gap_is_not_built_upon_and_a_new_epoch_is() {
    let dir = tempfile::tempdir().unwrap();
    let node = client(dir.path().join("snapshot.json"), Arc::new(|_, _| Ok(())));
    node.apply(update(7, vec![set("keys", &keys_json(1))])).unwrap();
    // A control plane that lags still has the key that was revoked.
    let older = node.apply(update(6, vec![set("keys", &keys_json(2))])).unwrap_err();
    assert!(matches!(older, ResyncError::Older { .. }), "{older}");
    assert_eq!(node.snapshots().borrow().resources.keys.len(), 1);

    // The next revision was made with other keys than these, and they are not sent.
    let held = node.snapshots().borrow().clone();
    let all = all_of(&held, ("keys", &keys_json(3)));
    let gap = node.apply(ConfigUpdate { all: all.clone(), ..update(8, vec![]) }).unwrap_err();
    let expected =
        ResyncError::Gap { revision: Revision { epoch: 1, position: 8 }, resource_type: "keys".into() };
    assert_eq!(gap, expected);
    assert_eq!(node.snapshots().borrow().revision.position, 7, "what is in force stays as it was");
    node.apply(ConfigUpdate { all, ..update(8, vec![set("keys", &keys_json(3))]) }).unwrap();

    // The database was restored: positions begin again, in a new epoch.
    let mut restored = update(2, vec![set("keys", &keys_json(0))]);
    restored.revision = Some(Revision { epoch: 2, position: 2 }.into());
    node.apply(restored).unwrap();
    assert_eq!(node.snapshots().borrow().revision, Revision { epoch: 2, position: 2 });
}

#[test]
fn what_was_refused_is_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let node = client(dir.path().join("snapshot.json"), Arc::new(|_, _| Ok(())));
    node.apply(update(1, vec![set("tenants", "[{]")])).unwrap();
    let held = node.snapshots().borrow().clone();
    let all = all_of(&held, ("tenants", "[{]"));
    let replies = node.apply(ConfigUpdate { all, ..update(2, vec![set("keys", &keys_json(1))]) }).unwrap();
    assert!(matches!(&replies[..], [Kind::Applied(_)]));
    assert_eq!(node.snapshots().borrow().revision.position, 2);
}
