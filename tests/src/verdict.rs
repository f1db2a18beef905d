//! How a check for people ends.

use std::process::ExitCode;

/// Prints everything that `check` found wrong; a failure if that is anything.
pub fn verdict(check: &str, wrong: &[String]) -> ExitCode {
    for violation in wrong {
        eprintln!("{check}: violated: {violation}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
