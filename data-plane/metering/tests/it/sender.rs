//! A record log and its relay, as a gateway has them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_metering::{LogOptions, RecordLog, Relay, RelayMetrics, RelayOptions, Transport};
use weir_schemas::kafka::Kafka;
use weir_schemas::rpc::auth::InternalSecret;

use crate::ledger::SECRET;

/// Generous: only a hang reaches it.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout_at(deadline(), reached).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

pub(crate) struct Sender {
    pub(crate) dir: TempDir,
    pub(crate) log: Arc<RecordLog>,
}

/// A relay that runs, and its metrics.
pub(crate) struct Relaying {
    pub(crate) relay: Relay,
    cancel: CancellationToken,
    registry: Registry,
}

impl Relaying {
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.relay.stopped().await;
    }
}

/// Quick enough for a test.
pub(crate) fn options() -> RelayOptions {
    RelayOptions {
        batch_records: 10,
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..RelayOptions::default()
    }
}

impl Sender {
    pub(crate) fn new(sender_id: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Self::open(&dir, sender_id);
        Self { dir, log }
    }

    pub(crate) fn open(dir: &TempDir, sender_id: &str) -> Arc<RecordLog> {
        let options = LogOptions {
            sync_interval: Duration::from_millis(5),
            segment_bytes: 256 << 10,
            max_bytes: 16 << 20,
            ..LogOptions::new(sender_id)
        };
        RecordLog::open(dir.path(), options).unwrap().0
    }

    /// Records of one tenant.
    pub(crate) fn write(&self, records: usize) {
        for _ in 0..records {
            self.write_for("ten_1");
        }
    }

    pub(crate) fn write_for(&self, tenant: &str) {
        let mut entry = self.log.begin(&"open").unwrap();
        entry.close("weir.usage.v1", tenant, |sequence| format!("record {sequence}")).unwrap();
    }

    /// Straight to the ledger.
    pub(crate) fn relay(&self, address: SocketAddr) -> Relaying {
        self.relay_with(None, address, SECRET, options())
    }

    pub(crate) fn relay_with(
        &self,
        kafka: Option<Kafka>,
        ledger: SocketAddr,
        secret: &str,
        options: RelayOptions,
    ) -> Relaying {
        let secret = InternalSecret::new(secret).unwrap();
        let transport = Transport::new(kafka, &format!("http://{ledger}"), &secret).unwrap();
        let mut registry = Registry::default();
        let metrics = RelayMetrics::register(registry.sub_registry_with_prefix("weir_gateway"));
        let cancel = CancellationToken::new();
        let relay = Relay::start(self.log.clone(), transport, options, metrics, cancel.clone());
        Relaying { relay, cancel, registry }
    }
}
