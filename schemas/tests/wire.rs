//! The wire forms: JSON Schemas equal the types, every sample ever sent still parses.
//! That samples satisfy the schemas is checked in `tests/tidy`: a validator among this crate's test dependencies would
//! change the features of half the tree, and everything would be compiled twice.
//! `WEIR_UPDATE=1 cargo test` rewrites the schemas and adds samples that are missing; it never changes a sample.
#![allow(clippy::unwrap_used, clippy::allow_attributes)]

use std::path::{Path, PathBuf};

use chrono::DateTime;
use schemars::{JsonSchema, schema_for};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_schemas::config_snapshot::{self as config, ConfigSnapshot, Limits, Resources, Revision, Scope};
use weir_schemas::ids::*;
use weir_schemas::records::*;

fn path(folder: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name)
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

fn updating() -> bool {
    std::env::var_os("WEIR_UPDATE").is_some()
}

/// The sample of `name` parses and survives a round trip.
fn check_sample<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, fresh: &T) {
    let file = path("samples", name);
    if updating() && !file.exists() {
        std::fs::write(&file, pretty(fresh)).unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let parsed: T = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::from_str::<T>(&pretty(&parsed)).unwrap(), parsed);
}

fn check_schema<T: JsonSchema>(name: &str) {
    let schema = serde_json::to_value(schema_for!(T)).unwrap();
    let file = path("json", name);
    if updating() {
        std::fs::write(&file, pretty(&schema)).unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(kept, schema, "schemas/json/{name} is stale: WEIR_UPDATE=1 cargo test -p weir-schemas");
}

fn at(seconds: i64) -> DateTime<chrono::Utc> {
    DateTime::from_timestamp(1_790_000_000 + seconds, 0).unwrap()
}

#[test]
fn charge_record() {
    let mut inter_token = GapStats::default();
    [900, 1_000, 5_000].iter().for_each(|&gap| inter_token.record(gap));
    let data = ChargeData {
        tenant: TenantId::from_u128(1),
        key: KeyId::from_u128(2),
        project: Some("search".into()),
        client_request_id: Some("client-7".into()),
        idempotency_key_hash: None,
        requested_model: "smollm2-135m-instruct".into(),
        version: VersionId::from_u128(3),
        tier: Tier::Interactive,
        stream: true,
        n: 1,
        granted_max_tokens: None,
        prompt_tokens: 40,
        cached_prompt_tokens: 32,
        generated_tokens: 4,
        reasoning_tokens: 0,
        finish_reason: FinishReason::Stop,
        received_at: at(0),
        finished_at: at(1),
        queue_us: 120,
        prefill_us: 9_000,
        ttft_us: Some(9_300),
        decode_us: 6_900,
        inter_token,
        slo: SloOutcome {
            ttft_target_ms: 200,
            itl_target_ms: 100,
            ttft_met: Some(true),
            itl_met: Some(true),
        },
        replicas: vec![WorkerId::from_u128(4)],
        preemptions: 0,
        config_revision: Revision { epoch: 1, position: 17 },
        sequence: 1,
        recovered: false,
    };
    let fresh = ChargeRecord::new(
        RequestId::from_u128(5).to_string(),
        GatewayId::from_u128(6).to_string(),
        at(1),
        data,
    );
    check_schema::<ChargeRecord>("weir.request.finished.v1.json");
    check_sample("weir.request.finished.v1.json", &fresh);
}

#[test]
fn control_event_record() {
    let fields = serde_json::json!({"name": "acme"});
    let data = ControlEventData {
        position: 17,
        stream: TenantId::from_u128(1).to_string(),
        version: 1,
        event: "tenant.created.v1".into(),
        fields: fields.as_object().unwrap().clone(),
        actor: KeyId::from_u128(2).to_string(),
        recorded_at: at(0),
    };
    let fresh = ControlEventRecord::new("17", "control-plane", at(0), data);
    check_schema::<ControlEventRecord>("weir.control.event.v1.json");
    check_sample("weir.control.event.v1.json", &fresh);
}

#[test]
fn execution_record() {
    let data = ExecutionData {
        request: RequestId::from_u128(5),
        attempt: 1,
        tenant: TenantId::from_u128(1),
        version: VersionId::from_u128(3),
        worker: WorkerId::from_u128(4),
        instance: InstanceId::from_u128(8),
        prompt_tokens: 40,
        cached_tokens: 32,
        computed_tokens: 8,
        generated_tokens: 4,
        seats: 1,
        started_at: at(0),
        finished_at: at(1),
        queue_us: 100,
        prefill_us: 9_000,
        decode_us: 6_900,
        device_us: 15_000,
        preemptions: 0,
        outcome: ExecutionOutcome::Stop,
        sequence: 1,
        recovered: false,
        billing: None,
    };
    let billed = ExecutionData {
        billing: Some(Billing {
            gateway: GatewayId::from_u128(6),
            key: KeyId::from_u128(2),
            project: Some("search".into()),
            client_request_id: Some("client-7".into()),
            idempotency_key_hash: None,
            requested_model: "smollm2-135m-instruct".into(),
            tier: Tier::Interactive,
            received_at: at(0),
        }),
        ..data.clone()
    };
    let fresh = |data| {
        let id = format!("{}.1", RequestId::from_u128(5));
        ExecutionRecord::new(id, WorkerId::from_u128(4).to_string(), at(1), data)
    };
    check_schema::<ExecutionRecord>("weir.execution.finished.v1.json");
    check_sample("weir.execution.finished.v1.json", &fresh(data));
    check_sample("weir.execution.finished.v1.billed.json", &fresh(billed));
}

#[test]
fn damaged_record() {
    check_schema::<DamagedRecord>("weir.damaged.v1.json");
    check_sample("weir.damaged.v1.json", &DamagedRecord::new(&GatewayId::from_u128(6).to_string(), 7));
}

#[test]
fn rejection_record() {
    let data = RejectionData {
        minute: at(-20),
        tenant: TenantId::from_u128(1),
        requested_model: "smollm2-135m-instruct".into(),
        reason: RejectionReason::RateLimit,
        count: 12,
        sequence: 2,
    };
    let fresh = RejectionRecord::new(
        format!("{}.2", GatewayId::from_u128(6)),
        GatewayId::from_u128(6).to_string(),
        at(60),
        data,
    );
    check_schema::<RejectionRecord>("weir.requests.rejected.v1.json");
    check_sample("weir.requests.rejected.v1.json", &fresh);
}

fn key(tenant: TenantId, model_limits: &config::ModelLimits) -> config::Key {
    config::Key {
        id: KeyId::from_u128(2),
        tenant,
        scopes: vec![Scope::Inference, Scope::UsageRead],
        limits: Limits::default(),
        model_limits: model_limits.clone(),
        expires_at: at(86_400),
    }
}

#[test]
fn config_snapshot() {
    let (tenant, version) = (TenantId::from_u128(1), VersionId::from_u128(3));
    let limits =
        Limits { tokens_per_minute: Some(100_000), concurrent_sequences: Some(16), ..Limits::default() };
    let model_limits = config::ModelLimits::from([("smollm2-135m-instruct".to_owned(), limits)]);
    let resources = Resources {
        tenants: vec![config::Tenant {
            id: tenant,
            state: config::TenantState::Active,
            weight: 1,
            limits,
            may_overflow: true,
            model_limits: model_limits.clone(),
        }],
        keys: vec![key(tenant, &model_limits)],
        verification_keys: vec![config::VerificationKey {
            kid: SigningKeyId::from_u128(9),
            x: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo".into(),
            issuer: "weir".into(),
            audience: "weir".into(),
        }],
        aliases: vec![config::Alias {
            id: AliasId::from_u128(10),
            name: "smollm2-135m-instruct".into(),
            targets: vec![config::AliasTarget { version, weight: 1 }],
            created_at: at(-100),
        }],
        versions: vec![config::PinnedVersion {
            id: version,
            model: "SmolLM2-135M-Instruct".into(),
            weights_uri: "file:///models/a.gguf".into(),
            digest: "sha256:00".into(),
            dtype: "Q4_1".into(),
            parameter_count: 134_515_008,
            context_limit: 8_192,
            tokenizer_digest: "sha256:11".into(),
        }],
        deployments: vec![config::Deployment {
            id: DeploymentId::from_u128(11),
            version,
            pool: "default".into(),
            replicas: 1,
            slo: config::Slo::default(),
            overload: config::Overload { batch: config::OverloadPolicy::Shed, ..config::Overload::default() },
        }],
        replicas: vec![config::Replica {
            worker: WorkerId::from_u128(4),
            instance: InstanceId::from_u128(8),
            address: "http://127.0.0.1:7000".into(),
            pool: "default".into(),
        }],
        leases: vec![config::QuotaLease {
            tenant,
            gateway: GatewayId::from_u128(6),
            epoch: 1,
            share: limits,
            model_shares: model_limits,
        }],
        budgets: vec![config::BudgetState { tenant, exhausted: false }],
    };
    let fresh = ConfigSnapshot { revision: Revision { epoch: 1, position: 17 }, resources };
    check_sample("config_snapshot.v1.json", &fresh);
    check_sample("config_snapshot.v1.model_limits.json", &fresh);
    let mut applied = Resources::default();
    for &kind in config::ResourceType::ALL {
        fresh.resources.check(kind).unwrap();
        applied.apply(kind, &fresh.resources.to_json(kind)).unwrap();
    }
    assert_eq!(applied, fresh.resources);
}

/// A record as a Kafka message: what readers find beside the payload stays so for ever.
#[cfg(feature = "kafka")]
#[test]
fn kafka_message() {
    use rdkafka::message::{Header, Headers, OwnedHeaders};
    use weir_schemas::kafka::{Origin, Topic};

    let text = std::fs::read_to_string(path("samples", "kafka_message.v1.json")).unwrap();
    let sample: Value = serde_json::from_str(&text).unwrap();
    assert!(Topic::RECORDS.iter().any(|topic| topic.name() == sample["topic"]));
    let headers = sample["headers"].as_object().unwrap().iter();
    let headers = headers.map(|(key, value)| (key.as_str(), value.as_str().unwrap()));
    let read = headers
        .clone()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(value) }));
    let origin = Origin::from_headers(Some(&read)).unwrap();
    let value: ChargeRecord = serde_json::from_value(sample["value"].clone()).unwrap();
    assert_eq!((origin.sender_id.as_str(), origin.sequence), (value.source.as_str(), value.data.sequence));
    assert_eq!(sample["key"], value.data.tenant.to_string());
    let written = Origin::to_headers(&origin.sender_id, origin.sequence);
    let written: Vec<_> = written
        .iter()
        .map(|header| (header.key, std::str::from_utf8(header.value.unwrap()).unwrap()))
        .collect();
    assert_eq!(written, headers.collect::<Vec<_>>());
}
