//! `make hammer`: the long form of what `tests/e2e/hammer.rs` runs in short. `SHORT=1` takes the short form.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "a check for people"
)]

use std::process::ExitCode;

use weir_tests::hammer::scenario::{Size, run};
use weir_tests::verdict::verdict;

#[tokio::main]
async fn main() -> ExitCode {
    let size = if std::env::var_os("SHORT").is_some() { Size::short() } else { Size::full() };
    let wrong = run(size).await;
    verdict("hammer", &wrong)
}
