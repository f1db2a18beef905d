//! Every record arrives, whatever the ledger does meanwhile.

use std::time::Duration;

use tokio::time::Instant;
use weir_schemas::records::DamagedRecord;

use crate::ledger::{SECRET, TestLedger};
use crate::sender::{Sender, any_port, deadline, options, until};

#[tokio::test]
async fn records_arrive_in_bounded_batches_and_the_log_is_pruned() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_relay");
    sender.write(95);
    let relaying = sender.relay(address);
    relaying.relay.flush(deadline()).await.unwrap();
    {
        let held = ledger.0.lock().unwrap();
        assert_eq!(held.records.len(), 95);
        assert_eq!(held.records[&7], b"\"record 7\"");
        assert_eq!(held.resent, 0);
        assert!(held.batches.iter().all(|&records| records <= 10), "{:?}", held.batches);
    }
    sender.write(5);
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(sender.log.stats().watermark, 100);
    let text = relaying.metrics();
    for line in [
        "weir_gateway_record_log_depth 0",
        "weir_gateway_record_log_watermark 100",
        "weir_gateway_record_log_delivered_total 100",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    relaying.stop().await;
}

#[tokio::test]
async fn a_ledger_that_is_away_refuses_or_loses_answers_gets_everything_in_the_end() {
    let ledger = TestLedger::default();
    let (address, mut server) = ledger.serve(any_port()).await;
    // Away from the start: the port is known, nothing listens.
    server.shutdown().await;
    let sender = Sender::new("gtw_relay");
    sender.write(30);
    let relaying = sender.relay(address);
    let soon = Instant::now() + Duration::from_millis(50);
    assert_eq!(relaying.relay.flush(soon).await.unwrap_err().pending, 30);
    ledger.0.lock().unwrap().refuse = 3;
    let (_, mut server) = ledger.serve(address).await;
    relaying.relay.flush(deadline()).await.unwrap();
    server.shutdown().await;
    ledger.0.lock().unwrap().lose_answers = 2;
    sender.write(20);
    let (_, _server) = ledger.serve(address).await;
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(ledger.0.lock().unwrap().watermark(), 50);
    assert!(ledger.0.lock().unwrap().resent >= 10, "a lost answer means a resend");
    relaying.stop().await;
}

#[tokio::test]
async fn what_the_ledger_forgot_is_sent_again_while_the_log_has_it() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_relay");
    sender.write(40);
    let relaying = sender.relay(address);
    relaying.relay.flush(deadline()).await.unwrap();
    // The ledger lost what it had acknowledged (a restore); the log still has it, as its segment is the active one.
    ledger.0.lock().unwrap().records.split_off(&21);
    sender.write(1);
    until("all", || ledger.0.lock().unwrap().watermark() >= 41).await;
    relaying.stop().await;
}

#[tokio::test]
async fn what_nobody_has_any_more_is_reported_as_lost_and_holds_nothing_up() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_relay");
    let relaying = sender.relay(address);
    // Enough for several segments, most of them deleted once the ledger has them.
    let payload = "x".repeat(20_000);
    for _ in 0..60 {
        let mut entry = sender.log.begin(&"open").unwrap();
        entry.close("weir.usage.v1", "ten_1", |_| &payload).unwrap();
    }
    relaying.relay.flush(deadline()).await.unwrap();
    sender.log.sync().unwrap();
    // Restored from a backup of its first day.
    ledger.0.lock().unwrap().records.split_off(&6);
    sender.write(3);
    until("all", || ledger.0.lock().unwrap().watermark() >= 63).await;
    {
        let held = ledger.0.lock().unwrap();
        let is_report =
            |sequence: u64| serde_json::from_slice::<DamagedRecord>(&held.records[&sequence]).is_ok();
        assert!(is_report(6) && is_report(20));
        assert!((1..6).chain(61..=63).all(|sequence| !is_report(sequence)));
    }
    relaying.stop().await;
}

#[tokio::test]
async fn a_restarted_sender_goes_on_where_the_ledger_is() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let mut sender = Sender::new("gtw_relay");
    sender.write(25);
    let relaying = sender.relay(address);
    relaying.relay.flush(deadline()).await.unwrap();
    relaying.stop().await;
    // The log itself is gone, its sender's id is not: its numbers go on after those that the ledger has.
    drop(sender.log);
    sender.dir = tempfile::tempdir().unwrap();
    sender.log = Sender::open(&sender.dir, "gtw_relay");
    let relaying = sender.relay(address);
    until("the ledger's word", || sender.log.stats().watermark >= 25).await;
    sender.write(5);
    relaying.relay.flush(deadline()).await.unwrap();
    assert_eq!(ledger.0.lock().unwrap().watermark(), 30);
    relaying.stop().await;
}

#[tokio::test]
async fn a_wrong_secret_delivers_nothing_and_loses_nothing() {
    let ledger = TestLedger::default();
    let (address, _server) = ledger.serve(any_port()).await;
    let sender = Sender::new("gtw_relay");
    sender.write(3);
    let relaying = sender.relay_with(None, address, &SECRET.replace('0', "f"), options());
    let soon = Instant::now() + Duration::from_millis(100);
    assert_eq!(relaying.relay.flush(soon).await.unwrap_err().pending, 3);
    assert!(ledger.0.lock().unwrap().records.is_empty());
    relaying.stop().await;
}
