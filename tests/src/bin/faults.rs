//! `make faults`: the long form of what `tests/e2e/faults.rs` runs in short. `SEED=7 make faults` chooses
//! differently; `SHORT=1` takes the short form.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "a check for people, which fails by panicking"
)]

use weir_tests::faults::scenario::{Size, run};

#[tokio::main]
async fn main() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let size = if std::env::var_os("SHORT").is_some() { Size::short(seed) } else { Size::full(seed) };
    run(size).await;
}
