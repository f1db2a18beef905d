//! `make overload`: five times capacity for two minutes under each overload policy.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "a check for people"
)]

use std::process::ExitCode;
use std::time::Duration;

use weir_tests::overload::scenario::run;
use weir_tests::verdict::verdict;

#[tokio::main]
async fn main() -> ExitCode {
    let seconds = std::env::var("SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(120);
    let wrong = run(Duration::from_secs(seconds)).await;
    verdict("overload", &wrong)
}
