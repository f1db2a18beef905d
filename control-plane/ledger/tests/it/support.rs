//! A running ledger on a database of its own, and records to send it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use prometheus_client::registry::Registry;
use rust_decimal::Decimal;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use weir_ledger::{Config, Deps, RawConfig, Running};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{GatewayId, KeyId, RequestId, TenantId, VersionId, WorkerId};
use weir_schemas::kafka::RawKafka;
use weir_schemas::records::{
    ChargeData, ChargeRecord, EXECUTIONS_TOPIC, ExecutionData, ExecutionRecord, USAGE_TOPIC,
};
use weir_schemas::rpc::auth::{AttachSecret, InternalSecret};
use weir_schemas::rpc::ledger::ledger_client::LedgerClient;
use weir_schemas::rpc::ledger::{AppendRequest, AppendResponse, Record};

use crate::private_postgres::PrivatePostgres;

pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const GATEWAY: GatewayId = GatewayId::from_u128(1);
pub(crate) const WORKER: WorkerId = WorkerId::from_u128(2);
/// A version that has a price, and one that has none.
pub(crate) const VERSION: VersionId = VersionId::from_u128(3);
pub(crate) const UNPRICED: VersionId = VersionId::from_u128(4);
pub(crate) const TENANT: TenantId = TenantId::from_u128(5);

const CHARGE: &str = include_str!("../../../../schemas/samples/weir.request.finished.v1.json");
const EXECUTION: &str = include_str!("../../../../schemas/samples/weir.execution.finished.v1.json");

type Client = LedgerClient<InterceptedService<Channel, AttachSecret>>;

/// A ledger that serves until its runtime ends.
pub(crate) struct Ledger {
    pub(crate) url: String,
    pub(crate) pool: PgPool,
    pub(crate) running: Running,
    pub(crate) registry: Registry,
    pub(crate) cancel: CancellationToken,
}

pub(crate) fn clock() -> Clock {
    Clock::new(|| at(0) + TimeDelta::hours(1))
}

/// So many seconds into the tests' day.
pub(crate) fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_790_000_000 + seconds, 0).unwrap()
}

pub(crate) async fn start_on(url: &str) -> Ledger {
    start_with(url, RawKafka::default()).await
}

/// On this database, reading from this broker.
pub(crate) async fn start_with(url: &str, kafka: RawKafka) -> Ledger {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), SECRET).unwrap();
    let raw = RawConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        database_url: url.to_owned(),
        internal_secret_file: secret.path().to_owned(),
        pricing_interval_ms: 3_600_000,
        kafka,
        ..RawConfig::default()
    };
    let config = Config::try_from(raw).unwrap();
    let pool = weir_ledger::connect(config.database.clone(), 4);
    let (mut registry, cancel) = (Registry::default(), CancellationToken::new());
    let running =
        weir_ledger::start(config, Deps { clock: clock() }, &mut registry, cancel.clone()).await.unwrap();
    Ledger { url: url.to_owned(), pool, running, registry, cancel }
}

impl Ledger {
    /// On a fresh database of the shared server, with a price for [`VERSION`].
    pub(crate) async fn start() -> Self {
        Self::start_reading(RawKafka::default()).await
    }

    /// The same, reading from this broker.
    pub(crate) async fn start_reading(kafka: RawKafka) -> Self {
        let ledger = start_with(&PrivatePostgres::shared().fresh_database(), kafka).await;
        ledger.ready().await;
        ledger.version(VERSION).await;
        ledger.version(UNPRICED).await;
        ledger.price(VERSION, at(-3600), "0.5", "0.125", "1.5").await;
        ledger
    }

    pub(crate) async fn ready(&self) {
        let ready = self.running.ready_probe();
        within_a_minute(async || ready().is_ok()).await;
    }

    pub(crate) fn client_with(&self, secret: &str) -> Client {
        let channel =
            Endpoint::from_shared(format!("http://{}", self.running.rpc_addr)).unwrap().connect_lazy();
        LedgerClient::with_interceptor(channel, InternalSecret::new(secret).unwrap().attach())
    }

    pub(crate) async fn try_append(&self, sender: &str, records: Vec<Record>) -> Result<u64, tonic::Status> {
        let request = AppendRequest { sender_id: sender.to_owned(), records };
        Ok(self.client_with(SECRET).append(request).await?.into_inner().watermark)
    }

    /// What a sender is told: its watermark, and the generation.
    pub(crate) async fn standing(&self, sender: &str) -> (u64, u64) {
        let request = AppendRequest { sender_id: sender.to_owned(), records: Vec::new() };
        let AppendResponse { watermark, generation } =
            self.client_with(SECRET).append(request).await.unwrap().into_inner();
        (watermark, generation)
    }

    /// Appends as the gateway; returns its watermark.
    pub(crate) async fn append(&self, records: impl IntoIterator<Item = Record>) -> u64 {
        self.try_append(&GATEWAY.to_string(), records.into_iter().collect()).await.unwrap()
    }

    /// Makes a version that a price may name.
    pub(crate) async fn version(&self, version: VersionId) {
        for sql in [
            "INSERT INTO models VALUES ($1 || '_model', $1 || '_model', now(), 1)",
            "INSERT INTO versions VALUES ($1, $1 || '_model', 'file:///weights', 'sha256:0', 'q4_1', 1, 1, 'sha256:0', now(), 1)",
        ] {
            sqlx::query(sql).bind(version.to_string()).execute(&self.pool).await.unwrap();
        }
    }

    /// Sets a price, as the control plane's read model shows it.
    pub(crate) async fn price(
        &self,
        version: VersionId,
        from: DateTime<Utc>,
        prompt: &str,
        cached: &str,
        generated: &str,
    ) {
        for sql in [
            "INSERT INTO price_books VALUES ('prb', 'book', 'USD', now(), 1) ON CONFLICT DO NOTHING",
            "INSERT INTO priced_versions VALUES ($1, 'prb') ON CONFLICT DO NOTHING",
        ] {
            let query = sqlx::query(sql);
            let query = if sql.contains("$1") { query.bind(version.to_string()) } else { query };
            query.execute(&self.pool).await.unwrap();
        }
        sqlx::query(
            "INSERT INTO price_versions SELECT coalesce(max(position), 0) + 1, 'prb', $1, $2, 'USD', $3::numeric,
                 $4::numeric, $5::numeric FROM price_versions",
        )
        .bind(version.to_string())
        .bind(from)
        .bind(prompt)
        .bind(cached)
        .bind(generated)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        sqlx::query_scalar(&format!("SELECT count(*) FROM {table}")).fetch_one(&self.pool).await.unwrap()
    }

    /// Sum of an expression over a table, 0 where there is no row.
    pub(crate) async fn sum(&self, expression: &str, table: &str) -> Decimal {
        let sql = format!("SELECT coalesce(sum({expression}), 0)::numeric FROM {table}");
        sqlx::query_scalar(&sql).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

/// Waits for a condition; a minute means that it never comes.
pub(crate) async fn within_a_minute(condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the condition never came");
}

/// Request `number`, which the gateway sends as its record `sequence`.
pub(crate) fn charge_of(
    sender: GatewayId,
    sequence: u64,
    number: u128,
    change: impl FnOnce(&mut ChargeData),
) -> Record {
    let mut event: ChargeRecord = serde_json::from_str(CHARGE).unwrap();
    event.id = RequestId::from_u128(number).to_string();
    event.source = sender.to_string();
    let data = &mut event.data;
    (data.tenant, data.key, data.version) = (TENANT, KeyId::from_u128(6), VERSION);
    (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (40, 32, 4);
    (data.received_at, data.finished_at) = (at(0), at(1));
    data.sequence = sequence;
    change(data);
    Record {
        sequence,
        topic: USAGE_TOPIC.into(),
        key: event.data.tenant.to_string(),
        payload: serde_json::to_vec(&event).unwrap(),
    }
}

/// The gateway's record `sequence` of the request with the same number.
pub(crate) fn charge(sequence: u64, change: impl FnOnce(&mut ChargeData)) -> Record {
    charge_of(GATEWAY, sequence, u128::from(sequence), change)
}

/// The worker's record `sequence` of an attempt at request `number`, matching [`charge`] unless changed.
pub(crate) fn execution(sequence: u64, number: u128, change: impl FnOnce(&mut ExecutionData)) -> Record {
    let mut event: ExecutionRecord = serde_json::from_str(EXECUTION).unwrap();
    event.source = WORKER.to_string();
    let data = &mut event.data;
    (data.request, data.tenant, data.version, data.worker) =
        (RequestId::from_u128(number), TENANT, VERSION, WORKER);
    (data.prompt_tokens, data.cached_tokens, data.computed_tokens, data.generated_tokens) = (40, 32, 8, 4);
    (data.started_at, data.finished_at) = (at(0), at(1));
    data.sequence = sequence;
    change(data);
    event.id = format!("{}/{}/{}", event.data.request, event.data.attempt, event.data.instance);
    Record {
        sequence,
        topic: EXECUTIONS_TOPIC.into(),
        key: event.data.tenant.to_string(),
        payload: serde_json::to_vec(&event).unwrap(),
    }
}
