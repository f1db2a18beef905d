//! Every record arrives, whatever the ledger does meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_metering::{LogOptions, RecordLog, Relay, RelayMetrics, RelayOptions, Transport};
use weir_schemas::rpc::auth::InternalSecret;

use crate::ledger::{SECRET, TestLedger};

/// Generous: only a hang reaches it.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

struct Sender {
    dir: TempDir,
    log: Arc<RecordLog>,
}

impl Sender {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Self::open(&dir);
        Self { dir, log }
    }

    fn open(dir: &TempDir) -> Arc<RecordLog> {
        let options = LogOptions {
            sync_interval: Duration::from_millis(5),
            segment_bytes: 256 << 10,
            max_bytes: 16 << 20,
            ..LogOptions::new("gtw_relay")
        };
        RecordLog::open(dir.path(), options).unwrap().0
    }

    fn write(&self, records: usize) {
        for _ in 0..records {
            let mut entry = self.log.begin(&"open").unwrap();
            entry.close("weir.usage.v1", "ten_1", |sequence| format!("record {sequence}")).unwrap();
        }
    }

    fn relay(
        &self,
        address: SocketAddr,
        secret: &str,
        registry: &mut Registry,
    ) -> (Relay, CancellationToken) {
        let options = RelayOptions {
            batch_records: 10,
            backoff_min: Duration::from_millis(2),
            backoff_max: Duration::from_millis(20),
            ..RelayOptions::default()
        };
        let secret = InternalSecret::new(secret).unwrap();
        let transport = Transport::ledger(&format!("http://{address}"), &secret).unwrap();
        let metrics = RelayMetrics::register(registry.sub_registry_with_prefix("weir_gateway"));
        let cancel = CancellationToken::new();
        (Relay::start(self.log.clone(), transport, options, metrics, cancel.clone()), cancel)
    }
}

#[tokio::test]
async fn records_arrive_in_bounded_batches_and_the_log_is_pruned() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new();
    sender.write(95);
    let mut registry = Registry::default();
    let (relay, cancel) = sender.relay(address, SECRET, &mut registry);
    relay.flush(deadline()).await.unwrap();
    {
        let held = ledger.0.lock().unwrap();
        assert_eq!(held.records.len(), 95);
        assert_eq!(held.records[&7], b"\"record 7\"");
        assert_eq!(held.resent, 0);
        assert!(held.batches.iter().all(|&records| records <= 10), "{:?}", held.batches);
    }
    sender.write(5);
    relay.flush(deadline()).await.unwrap();
    assert_eq!(sender.log.stats().watermark, 100);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        "weir_gateway_record_log_depth 0",
        "weir_gateway_record_log_watermark 100",
        "weir_gateway_record_log_delivered_total 100",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    cancel.cancel();
    relay.stopped().await;
}

#[tokio::test]
async fn a_ledger_that_is_away_refuses_or_loses_answers_gets_everything_in_the_end() {
    let ledger = TestLedger::default();
    let (address, mut server) = ledger.serve(any_port()).await;
    // Away from the start: the port is known, nothing listens.
    server.shutdown().await;
    let sender = Sender::new();
    sender.write(30);
    let (relay, cancel) = sender.relay(address, SECRET, &mut Registry::default());
    let soon = Instant::now() + Duration::from_millis(50);
    assert_eq!(relay.flush(soon).await.unwrap_err().pending, 30);
    ledger.0.lock().unwrap().refuse = 3;
    let (_, mut server) = ledger.serve(address).await;
    relay.flush(deadline()).await.unwrap();
    server.shutdown().await;
    ledger.0.lock().unwrap().lose_answers = 2;
    sender.write(20);
    let (_, _server) = ledger.serve(address).await;
    relay.flush(deadline()).await.unwrap();
    assert_eq!(ledger.0.lock().unwrap().watermark(), 50);
    assert!(ledger.0.lock().unwrap().resent >= 10, "a lost answer means a resend");
    cancel.cancel();
    relay.stopped().await;
}

#[tokio::test]
async fn what_the_ledger_forgot_is_sent_again_while_the_log_has_it() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new();
    sender.write(40);
    let (relay, cancel) = sender.relay(address, SECRET, &mut Registry::default());
    relay.flush(deadline()).await.unwrap();
    // The ledger lost what it had acknowledged (a restore); the log still has it, as its segment is the active one.
    ledger.0.lock().unwrap().records.split_off(&21);
    sender.write(1);
    let complete = async {
        while ledger.0.lock().unwrap().watermark() < 41 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout_at(deadline(), complete).await.unwrap();
    cancel.cancel();
    relay.stopped().await;
}

#[tokio::test]
async fn what_nobody_has_any_more_is_reported_as_lost_and_holds_nothing_up() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new();
    let (relay, cancel) = sender.relay(address, SECRET, &mut Registry::default());
    // Enough for several segments, most of them deleted once the ledger has them.
    let payload = "x".repeat(20_000);
    for _ in 0..60 {
        let mut entry = sender.log.begin(&"open").unwrap();
        entry.close("weir.usage.v1", "ten_1", |_| &payload).unwrap();
    }
    relay.flush(deadline()).await.unwrap();
    sender.log.sync().unwrap();
    // Restored from a backup of its first day.
    ledger.0.lock().unwrap().records.split_off(&6);
    sender.write(3);
    let complete = async {
        while ledger.0.lock().unwrap().watermark() < 63 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout_at(deadline(), complete).await.unwrap();
    let held = ledger.0.lock().unwrap();
    let is_report = |sequence: u64| held.records[&sequence].starts_with(b"{\"reason\":\"damaged or lost");
    assert!(is_report(6) && is_report(20));
    assert!((1..6).chain(61..=63).all(|sequence| !is_report(sequence)));
    cancel.cancel();
}

#[tokio::test]
async fn a_restarted_sender_goes_on_where_the_ledger_is() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let mut sender = Sender::new();
    sender.write(25);
    let (relay, cancel) = sender.relay(address, SECRET, &mut Registry::default());
    relay.flush(deadline()).await.unwrap();
    cancel.cancel();
    relay.stopped().await;
    // The log itself is gone, its sender's id is not: its numbers go on after those that the ledger has.
    drop(sender.log);
    sender.dir = tempfile::tempdir().unwrap();
    sender.log = Sender::open(&sender.dir);
    let (relay, cancel) = sender.relay(address, SECRET, &mut Registry::default());
    let heard = async {
        while sender.log.stats().watermark < 25 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout_at(deadline(), heard).await.unwrap();
    sender.write(5);
    relay.flush(deadline()).await.unwrap();
    assert_eq!(ledger.0.lock().unwrap().watermark(), 30);
    cancel.cancel();
    relay.stopped().await;
}

#[tokio::test]
async fn a_wrong_secret_delivers_nothing_and_loses_nothing() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new();
    sender.write(3);
    let (relay, cancel) = sender.relay(address, &SECRET.replace('0', "f"), &mut Registry::default());
    let soon = Instant::now() + Duration::from_millis(100);
    assert_eq!(relay.flush(soon).await.unwrap_err().pending, 3);
    assert!(ledger.0.lock().unwrap().records.is_empty());
    cancel.cancel();
    relay.stopped().await;
}
