//! Every part is killed under load; at the end each receipt of the clients is in the ledger, exactly once. The long form
//! is `make faults`.

use weir_tests::faults::scenario::{Size, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_receipt_is_charged_once_whatever_is_killed() {
    run(Size::short(1)).await;
}
