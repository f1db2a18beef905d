//! How fast the ledger charges: `cargo run --release -p weir-ledger --example ledger_bench [postgres://…]`.
//!
//! Charge records go the whole way (RPC, parsing, one transaction a batch) into Postgres; then the same rows are
//! loaded by a bare COPY into a table without indexes, as the mark of what this Postgres takes. Without an address a
//! private Postgres is started (fsync off, so that the disk is not what is measured).
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
use sqlx::{Connection, PgConnection};
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use weir_ledger::{Config, Deps, RawConfig, Running};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{GatewayId, KeyId, RequestId, TenantId, VersionId};
use weir_schemas::records::{ChargeRecord, USAGE_TOPIC};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::ledger::ledger_client::LedgerClient;
use weir_schemas::rpc::ledger::{AppendRequest, Record};

#[path = "../../../tests/support/private_postgres.rs"]
mod private_postgres;

const SAMPLE: &str = include_str!("../../../schemas/samples/weir.request.finished.v1.json");
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const RECORDS_PER_SENDER: u64 = 20_000;
const BATCH_RECORDS: usize = 500;
const TENANTS: u128 = 20;
const VERSION: VersionId = VersionId::from_u128(3);

#[tokio::main]
async fn main() {
    let given = std::env::args().nth(1);
    let url = given.unwrap_or_else(|| private_postgres::PrivatePostgres::shared().fresh_database());
    let running = start_ledger(&url).await;
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
    bare_copy(&url).await;
}

async fn start_ledger(url: &str) -> Running {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), SECRET).unwrap();
    let raw = RawConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        database_url: url.to_owned(),
        internal_secret_file: secret.path().to_owned(),
        ..RawConfig::default()
    };
    let deps = Deps { clock: Clock::new(Utc::now) };
    let config = Config::try_from(raw).unwrap();
    let running =
        weir_ledger::start(config, deps, &mut Registry::default(), CancellationToken::new()).await.unwrap();
    let ready = running.ready_probe();
    while ready().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut connection = PgConnection::connect(url).await.unwrap();
    let price = format!(
        "INSERT INTO models VALUES ('mdl', 'm', now(), 1);
         INSERT INTO versions VALUES ('{VERSION}', 'mdl', 'file:///w', 'sha256:0', 'q4_1', 1, 1, 'sha256:0', now(), 1);
         INSERT INTO price_books VALUES ('prb', 'book', 'USD', now(), 1);
         INSERT INTO priced_versions VALUES ('{VERSION}', 'prb');
         INSERT INTO price_versions VALUES (1, 'prb', '{VERSION}', '2020-01-01', 'USD', 0.55, 0.055, 1.65)"
    );
    sqlx::raw_sql(&price).execute(&mut connection).await.unwrap();
    running
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
