//! The short form of `make hammer`: limits hold in every stretch of time while they change, clients that leave at any moment
//! leave nothing behind, rejections take nothing and retries once.

use weir_tests::hammer::scenario::{Size, run};

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_in_every_stretch_of_time_and_nothing_is_left_behind() {
    let wrong = run(Size::short()).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}
