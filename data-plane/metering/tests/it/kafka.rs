//! The relay through a real broker: what a network, a crash and an emptied disk do to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use weir_metering::RelayOptions;

use crate::ledger::{SECRET, TestLedger};
use crate::private_kafka::PrivateKafka;
use crate::reader::Reader;
use crate::sender::{Relaying, Sender, any_port, deadline, options, until};

/// No bound.
const ALL: u64 = u64::MAX;

/// Another thread, as starting and stopping a broker blocks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn relay(sender: &Sender, broker: &PrivateKafka, ledger: SocketAddr, options: RelayOptions) -> Relaying {
    sender.relay_with(Some(broker.kafka()), ledger, SECRET, options)
}

fn contains(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line} in {text}");
    }
}

/// Records that the broker has acknowledged, resent ones included.
fn delivered(relaying: &Relaying) -> u64 {
    let text = relaying.metrics();
    let line = text.lines().find(|line| line.starts_with("weir_gateway_record_log_delivered_total")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn records_arrive_in_each_tenant_s_order_and_the_log_follows_the_ledger() {
    let broker = blocking(PrivateKafka::shared).await;
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_order");
    let relaying = relay(&sender, broker, address, options());
    let reader = Reader::start(&broker.kafka(), &ledger, "gtw_order", ALL);
    for number in 0..400 {
        sender.write_for(["ten_1", "ten_2", "", "ten_3"][number % 4]);
    }
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(sender.log.stats().watermark, 400);
    until("gauges", || relaying.metrics().contains("weir_gateway_record_log_depth 0")).await;
    contains(&relaying.metrics(), &["watermark 400", "record_log_rewinds_total 0"]);
    // A broker that was too busy for a batch gets it again.
    if relaying.metrics().contains("weir_gateway_record_log_delivery_failures_total 0") {
        assert_eq!((delivered(&relaying), reader.messages.load(Ordering::Relaxed)), (400, 400));
    }
    reader.stop();
    assert!(
        ledger.0.lock().unwrap().batches.iter().all(|&records| records == 0),
        "the ledger was only asked"
    );
    relaying.stop().await;
}

#[tokio::test]
async fn a_ledger_that_is_away_holds_nothing_up_but_the_log_s_end() {
    let broker = blocking(PrivateKafka::shared).await;
    let ledger = TestLedger::default();
    let (address, mut server) = ledger.serve(any_port()).await;
    server.shutdown().await;
    let sender = Sender::new("gtw_alone");
    sender.write(50);
    let relaying = relay(&sender, broker, address, options());
    let reader = Reader::start(&broker.kafka(), &ledger, "gtw_alone", ALL);
    until("all in Kafka", || ledger.0.lock().unwrap().watermark() == 50).await;
    contains(&relaying.metrics(), &["weir_gateway_record_log_depth 50"]);
    let soon = Instant::now() + Duration::from_millis(50);
    assert_eq!(relaying.relay.flush(soon).await.unwrap_err().pending, 50);
    let (_, _server) = ledger.serve(address).await;
    relaying.relay.flush(deadline()).await.unwrap();
    reader.stop();
    relaying.stop().await;
}

#[tokio::test]
async fn a_watermark_that_stands_still_is_in_the_end_a_loss() {
    let broker = blocking(PrivateKafka::shared).await;
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_stuck");
    let patience = Duration::from_millis(300);
    let options = RelayOptions { patience_min: patience, patience_max: 4 * patience, ..options() };
    let relaying = relay(&sender, broker, address, options);
    sender.write(30);
    // The ledger does not read at all, as if a partition had been cut short and it had not noticed.
    until("sent again", || !relaying.metrics().contains("record_log_rewinds_total 0")).await;
    let reader = Reader::start(&broker.kafka(), &ledger, "gtw_stuck", ALL);
    relaying.relay.flush(deadline()).await.unwrap();
    until("each of them twice", || reader.messages.load(Ordering::Relaxed) >= 60).await;
    reader.stop();
    relaying.stop().await;
}

#[tokio::test]
async fn a_broker_that_is_killed_and_one_that_lost_its_disk_lose_nothing() {
    let broker = Arc::new(blocking(PrivateKafka::start).await);
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_killed");
    let reader = Reader::start(&broker.kafka(), &ledger, "gtw_killed", 500);
    let relaying = relay(&sender, &broker, address, options());
    let write = |records: usize| {
        for number in 0..records {
            sender.write_for(["ten_1", "ten_2", "ten_3"][number % 3]);
        }
    };
    // Killed while a batch is under way, and written to while it is away.
    write(200);
    until("some in Kafka", || ledger.0.lock().unwrap().watermark() >= 20).await;
    let killed = broker.clone();
    blocking(move || killed.kill()).await;
    write(150);
    let resumed = broker.clone();
    blocking(move || resumed.resume()).await;
    write(150);
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(sender.log.stats().watermark, 500);
    reader.stop();

    // 100 more that the ledger does not read before the broker loses everything.
    write(100);
    until("sent", || delivered(&relaying) >= 600).await;
    let wiped = broker.clone();
    blocking(move || {
        wiped.kill();
        wiped.wipe();
        wiped.resume();
    })
    .await;
    // What the ledger's consumer says when it finds another incarnation of the topics.
    ledger.0.lock().unwrap().generation += 1;
    write(20);
    let reader = Reader::start_after_loss(&broker.kafka(), &ledger, "gtw_killed");
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(sender.log.stats().watermark, 620);
    reader.stop();
    relaying.stop().await;
}
