//! How fast the ledger charges: `cargo run --release -p weir-ledger --example ledger_bench [postgres://…]`.
//!
//! Charge records go the whole way into Postgres: by RPC, and out of a real Kafka; then the same rows are loaded by a
//! bare COPY into a table without indexes, as the mark of what this Postgres takes. Without an address a private
//! Postgres is started (fsync off, so that the disk is not what is measured). Beside the rate stands the processor
//! time of ledger and Postgres together, which a busy machine changes least.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::allow_attributes
)]

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use prometheus_client::registry::Registry;
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::{Connection, PgConnection};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use weir_ledger::{Config, Deps, RawConfig, Running};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{GatewayId, KeyId, RequestId, TenantId, VersionId};
use weir_schemas::kafka::{Origin, RawKafka, Topic, ensure_topics};
use weir_schemas::records::{ChargeRecord, USAGE_TOPIC};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::ledger::ledger_client::LedgerClient;
use weir_schemas::rpc::ledger::{AppendRequest, Record};

#[path = "../../../tests/support/private_kafka.rs"]
mod private_kafka;
#[path = "../../../tests/support/private_postgres.rs"]
mod private_postgres;

const SAMPLE: &str = include_str!("../../../schemas/samples/weir.request.finished.v1.json");
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const RECORDS_PER_SENDER: u64 = 20_000;
const BATCH_RECORDS: usize = 500;
const TENANTS: u128 = 20;
const KAFKA_SENDERS: u128 = 4;
const VERSION: VersionId = VersionId::from_u128(3);

#[tokio::main]
async fn main() {
    let given = std::env::args().nth(1);
    let url = given.unwrap_or_else(|| private_postgres::PrivatePostgres::shared().fresh_database());
    let (cancel, running) = start(&url, RawKafka::default()).await;
    set_prices(&url).await;
    let address = format!("http://{}", running.rpc_addr);
    for senders in [1u64, 4] {
        let batches: Vec<_> = (0..senders)
            .map(|sender| records(GatewayId::from_u128(u128::from(senders * 100 + sender))))
            .collect();
        let started = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for (sender, records) in batches {
            let address = address.clone();
            tasks.spawn(async move { send(&address, sender, &records).await });
        }
        tasks.join_all().await;
        report(&format!("ledger, {senders} sender(s)"), RECORDS_PER_SENDER * senders, started.elapsed());
    }
    cancel.cancel();
    running.stopped().await;
    from_kafka(&url).await;
    bare_copy(&url).await;
}

/// Everything lies in Kafka before the ledger starts, as after an outage.
async fn from_kafka(url: &str) {
    let broker = tokio::task::spawn_blocking(private_kafka::PrivateKafka::start).await.unwrap();
    let kafka = broker.kafka();
    ensure_topics(&kafka, &Topic::RECORDS).await.unwrap();
    let producer: FutureProducer = kafka.client_config().create().unwrap();
    let mut deliveries = Vec::new();
    for sender in 0..KAFKA_SENDERS {
        let (sender, records) = records(GatewayId::from_u128(1_000 + sender));
        for record in records {
            let headers = Origin::to_headers(&sender.to_string(), record.sequence);
            let message =
                FutureRecord::to(&record.topic).key(&record.key).payload(&record.payload).headers(headers);
            let sent = producer.send_result(message);
            deliveries.push(sent.map_err(|(error, _)| error).expect("room for all in the producer's queue"));
            if deliveries.len() >= 10_000 {
                for delivery in deliveries.drain(..) {
                    delivery.await.unwrap().unwrap();
                }
            }
        }
    }
    for delivery in deliveries {
        delivery.await.unwrap().unwrap();
    }
    let mut watcher = PgConnection::connect(url).await.unwrap();
    let (before, charges_before) = (acknowledged(&mut watcher).await, count(&mut watcher).await);
    let all = i64::try_from(u128::from(RECORDS_PER_SENDER) * KAFKA_SENDERS).unwrap();
    let (cpu, mut first) = (cpu_seconds(&mut watcher).await, None);
    let running = start(url, broker.raw()).await;
    loop {
        let done = acknowledged(&mut watcher).await - before;
        // The first batch ends the time that it takes to join the group.
        let (since, already) = *first.get_or_insert_with(|| (Instant::now(), done));
        if done == 0 {
            first = None;
        } else if done == all {
            report("ledger, from Kafka", u64::try_from(all - already).unwrap(), since.elapsed());
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cpu = cpu_seconds(&mut watcher).await - cpu;
    assert_eq!(count(&mut watcher).await - charges_before, all);
    println!(
        "    {cpu:.1} s of processor time in ledger and Postgres: {:.0} records/s of it",
        all as f64 / cpu
    );
    running.0.cancel();
    running.1.stopped().await;
}

/// Records up to the senders' watermarks.
async fn acknowledged(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT coalesce(sum(watermark), 0)::bigint FROM ledger_senders")
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn count(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM ledger_charges").fetch_one(connection).await.unwrap()
}

/// User and system time of this process and of the ledger's connections.
async fn cpu_seconds(connection: &mut PgConnection) -> f64 {
    let backends: Vec<i32> =
        sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE application_name = 'weir-ledger'")
            .fetch_all(connection)
            .await
            .unwrap();
    let ticks = |process: String| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    };
    let all: u64 =
        ticks("self".to_owned()) + backends.into_iter().map(|pid| ticks(pid.to_string())).sum::<u64>();
    all as f64 / 100.0
}

async fn start(url: &str, kafka: RawKafka) -> (CancellationToken, Running) {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), SECRET).unwrap();
    let raw = RawConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        database_url: url.to_owned(),
        internal_secret_file: secret.path().to_owned(),
        kafka,
        ..RawConfig::default()
    };
    let deps = Deps { clock: Clock::new(Utc::now) };
    let config = Config::try_from(raw).unwrap();
    let cancel = CancellationToken::new();
    let running = weir_ledger::start(config, deps, &mut Registry::default(), cancel.clone()).await.unwrap();
    let ready = running.ready_probe();
    while ready().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (cancel, running)
}

/// What the records name.
async fn set_prices(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let price = format!(
        "INSERT INTO models VALUES ('mdl', 'm', now(), 1);
         INSERT INTO versions VALUES ('{VERSION}', 'mdl', 'file:///w', 'sha256:0', 'q4_1', 1, 1, 'sha256:0', now(), 1);
         INSERT INTO price_books VALUES ('prb', 'book', 'USD', now(), 1);
         INSERT INTO priced_versions VALUES ('{VERSION}', 'prb');
         INSERT INTO price_versions VALUES (1, 'prb', '{VERSION}', '2020-01-01', 'USD', 0.55, 0.055, 1.65)"
    );
    sqlx::raw_sql(&price).execute(&mut connection).await.unwrap();
}

fn records(sender: GatewayId) -> (GatewayId, Vec<Record>) {
    let mut event: ChargeRecord = serde_json::from_str(SAMPLE).unwrap();
    event.source = sender.to_string();
    for gap in 0..40 {
        event.data.inter_token.record(5_000 + gap * 700);
    }
    let begin: DateTime<Utc> = event.data.received_at;
    let records = (1..=RECORDS_PER_SENDER)
        .map(|sequence| {
            event.id = RequestId::from_u128(sender.as_u128() << 64 | u128::from(sequence)).to_string();
            let data = &mut event.data;
            data.sequence = sequence;
            data.tenant = TenantId::from_u128(u128::from(sequence) % TENANTS);
            data.key = KeyId::from_u128(u128::from(sequence) % TENANTS);
            data.version = VERSION;
            data.received_at = begin + TimeDelta::milliseconds(i64::try_from(sequence).unwrap() * 5);
            let payload = serde_json::to_vec(&event).unwrap();
            Record { sequence, topic: USAGE_TOPIC.into(), key: event.data.tenant.to_string(), payload }
        })
        .collect();
    (sender, records)
}

async fn send(address: &str, sender: GatewayId, records: &[Record]) {
    let channel = Endpoint::from_shared(address.to_owned()).unwrap().connect().await.unwrap();
    let secret = InternalSecret::new(SECRET).unwrap();
    let mut client = LedgerClient::with_interceptor(channel, secret.attach());
    for batch in records.chunks(BATCH_RECORDS) {
        let request = AppendRequest { sender_id: sender.to_string(), records: batch.to_vec() };
        let watermark = client.append(request).await.unwrap().into_inner().watermark;
        assert_eq!(Some(watermark), batch.last().map(|record| record.sequence));
    }
}

async fn bare_copy(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let mut rows = Vec::new();
    {
        let mut out = connection.copy_out_raw("COPY ledger_charges TO STDOUT").await.unwrap();
        while let Some(chunk) = out.next().await {
            rows.extend_from_slice(&chunk.unwrap());
        }
    }
    sqlx::raw_sql("CREATE TABLE bare_copy (LIKE ledger_charges)").execute(&mut connection).await.unwrap();
    let started = Instant::now();
    let mut copy = connection.copy_in_raw("COPY bare_copy FROM STDIN").await.unwrap();
    for chunk in rows.chunks(1 << 20) {
        copy.send(chunk).await.unwrap();
    }
    let copied = copy.finish().await.unwrap();
    report("bare COPY of the same rows", copied, started.elapsed());
}

fn report(what: &str, records: u64, took: Duration) {
    let (seconds, rate) = (took.as_secs_f64(), records as f64 / took.as_secs_f64());
    println!("{what:<32} {records:>8} records in {seconds:>7.3} s  {rate:>9.0} records/s");
}
