//! `make hammer`: the long form of what `tests/e2e/hammer.rs` runs in short. `SHORT=1` takes the short form.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::allow_attributes,
    reason = "a check for people"
)]

use std::process::ExitCode;

use weir_tests::hammer::scenario::{Size, run};

#[tokio::main]
async fn main() -> ExitCode {
    let size = if std::env::var_os("SHORT").is_some() { Size::short() } else { Size::full() };
    let wrong = run(size).await;
    for violation in &wrong {
        eprintln!("hammer: violated: {violation}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
