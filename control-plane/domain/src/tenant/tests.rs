use chrono::Duration;
use weir_schemas::ids::SigningKeyId;

use super::*;
use crate::aggregate::check;
use crate::event::{Event, StoredForm};
use crate::key::KEY_DAYS_MAX;
use crate::refusal::{Rule, invalid};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_790_000_000 + seconds, 0).unwrap()
}

fn created() -> TenantEvent {
    TenantEvent::Created {
        id: TenantId::from_u128(1),
        name: "acme".into(),
        weight: 1,
        limits: Limits::default(),
        model_limits: ModelLimits::new(),
        created_at: at(0),
    }
}

fn key(n: u128) -> KeyRecord {
    KeyRecord {
        id: KeyId::from_u128(n),
        name: "ci".into(),
        scopes: vec![Scope::Inference],
        limits: Limits::default(),
        model_limits: ModelLimits::new(),
        signing_key: SigningKeyId::from_u128(9),
        created_at: at(10),
        expires_at: at(1_000),
    }
}

fn create(name: &str, weight: u32, limits: Limits) -> TenantCommand {
    let (id, name, model_limits) = (TenantId::from_u128(1), name.into(), ModelLimits::new());
    TenantCommand::Create { id, name, weight, limits, model_limits, now: at(0) }
}

#[test]
fn creation() {
    check::<Tenant>(&[], create("acme", 1, Limits::default()), Ok(vec![created()]));
    check::<Tenant>(
        &[created()],
        create("acme", 1, Limits::default()),
        Err(Refusal::Exists { noun: "tenant" }),
    );
    check::<Tenant>(
        &[],
        create(" ", 1, Limits::default()),
        Err(invalid("name", Rule::Text { max: validate::TEXT_CHARS_MAX })),
    );
    check::<Tenant>(
        &[],
        create("acme", 0, Limits::default()),
        Err(invalid("weight", Rule::Range { min: 1, max: WEIGHT_MAX })),
    );
}

#[test]
fn an_update_is_one_event_for_each_thing_that_changes() {
    let limits = Limits { tokens_per_minute: Some(100), ..Limits::default() };
    let model_limits = ModelLimits::from([("m".to_owned(), limits)]);
    let update = |name: &str| TenantCommand::Update {
        name: Some(name.into()),
        state: Some(TenantState::Suspended),
        weight: Some(1),
        limits: Some(limits),
        model_limits: Some(model_limits.clone()),
        may_overflow: Some(true),
    };
    let then = vec![
        TenantEvent::Renamed { name: "acme 2".into() },
        TenantEvent::StateSet { state: TenantState::Suspended },
        TenantEvent::LimitsSet { limits },
        TenantEvent::ModelLimitsSet { model_limits: model_limits.clone() },
        TenantEvent::MayOverflowSet { may_overflow: true },
    ];
    check::<Tenant>(&[created()], update("acme 2"), Ok(then.clone()));
    let given: Vec<_> = std::iter::once(created()).chain(then).collect();
    check::<Tenant>(&given, update("acme 2"), Ok(vec![]));
    assert_eq!(Tenant::replay(&given).unwrap().model_limits, model_limits);
    check::<Tenant>(&[], update("acme"), Err(Refusal::Absent { noun: "tenant" }));
}

#[test]
fn events_from_before_limits_on_models_still_read() {
    let stored = |event_type: &str, data| {
        let event = Event::decode(StoredForm { event_type: event_type.into(), data }).unwrap();
        TenantEvent::try_from(event).unwrap()
    };
    let data = serde_json::json!({
        "id": TenantId::from_u128(1), "name": "acme", "weight": 1, "limits": {"tokens_per_minute": 9},
        "created_at": at(0),
    });
    let limits = Limits { tokens_per_minute: Some(9), ..Limits::default() };
    let TenantEvent::Created { limits: read, model_limits, .. } = stored("tenant.created.v1", data) else {
        panic!("another event")
    };
    assert_eq!((read, model_limits), (limits, ModelLimits::new()));
    let mut old_key = serde_json::to_value(key(2)).unwrap();
    assert!(
        old_key.as_object_mut().unwrap().remove("model_limits").is_none(),
        "written only where there are any"
    );
    let event = stored("tenant.key_created.v1", serde_json::json!({ "key": old_key }));
    assert_eq!(event, TenantEvent::KeyCreated { key: key(2) });
}

#[test]
fn keys_are_issued_once_and_revoked_once() {
    let issue = |key| TenantCommand::CreateKey { key };
    let revoke = |n| TenantCommand::RevokeKey { key: KeyId::from_u128(n), now: at(50) };
    let issued = TenantEvent::KeyCreated { key: key(2) };
    let revoked = TenantEvent::KeyRevoked { key: KeyId::from_u128(2), revoked_at: at(50) };

    check::<Tenant>(&[created()], issue(key(2)), Ok(vec![issued.clone()]));
    check::<Tenant>(&[created(), issued.clone()], issue(key(2)), Err(Refusal::Exists { noun: "key" }));
    check::<Tenant>(&[created(), issued.clone()], revoke(2), Ok(vec![revoked.clone()]));
    check::<Tenant>(&[created(), issued.clone(), revoked.clone()], revoke(2), Ok(vec![]));
    check::<Tenant>(&[created(), issued.clone()], revoke(3), Err(Refusal::Absent { noun: "key" }));

    let tenant = Tenant::replay(&[created(), issued, revoked]).unwrap();
    assert!(!tenant.keys[&KeyId::from_u128(2)].is_active(at(60)));
}

#[test]
fn a_key_that_could_not_be_used_rightly_is_refused() {
    let max = TENANT_KEY_SCOPES.len();
    let bad = |change: fn(&mut KeyRecord), field, rule| {
        let mut key = key(2);
        change(&mut key);
        check::<Tenant>(&[created()], TenantCommand::CreateKey { key }, Err(invalid(field, rule)));
    };
    bad(|key| key.scopes = vec![], "scopes", Rule::Distinct { max });
    bad(|key| key.scopes = vec![Scope::Inference; 2], "scopes", Rule::Distinct { max });
    bad(|key| key.scopes = vec![Scope::PlatformAdmin], "scopes", Rule::Scope);
    let rule = Rule::Range { min: 1, max: 1_000_000_000_000 };
    bad(
        |key| {
            let zero = Limits { input_tokens_per_minute: Some(0), ..Limits::default() };
            key.model_limits.insert("m".into(), zero);
        },
        "limits.input_tokens_per_minute",
        rule,
    );
    bad(|key| key.expires_at = key.created_at, "expires_at", Rule::Expiry { max_days: KEY_DAYS_MAX });
    bad(
        |key| key.expires_at = key.created_at + Duration::days(KEY_DAYS_MAX) + Duration::seconds(1),
        "expires_at",
        Rule::Expiry { max_days: KEY_DAYS_MAX },
    );
}

#[test]
fn the_number_of_active_keys_is_bounded_and_expired_ones_do_not_count() {
    let issued = |n: u128| TenantEvent::KeyCreated { key: key(n) };
    let given: Vec<_> =
        std::iter::once(created()).chain((0..u128::from(ACTIVE_KEYS_MAX)).map(issued)).collect();
    let tenant = Tenant::replay(&given).unwrap();
    let late = KeyRecord { created_at: at(2_000), expires_at: at(3_000), ..key(9_999) };
    assert!(tenant.create_key(key(9_999)).is_err());
    assert!(tenant.create_key(late).is_ok());
}
