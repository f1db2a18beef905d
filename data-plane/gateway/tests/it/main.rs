//! The gateway over real HTTP and real gRPC. Its peers here are small servers of the same wires: a control plane that
//! publishes what a test says, a ledger that keeps what it gets, and workers that follow a script, so that faults
//! happen exactly when a test wants them. The real peers are met in the `weir-tests` crate.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::allow_attributes,
    clippy::disallowed_methods,
    unreachable_pub,
    dead_code,
    missing_debug_implementations
)]

#[path = "../../src/testing.rs"]
mod testing;
#[path = "../../src/testing_text.rs"]
mod testing_text;

mod support;

mod aborts;
mod answers;
mod bad_input;
mod config_changes;
mod idempotency;
mod kafka;
mod limits;
mod lost_replicas;
mod overload;
mod record_log;
mod restart;
mod tools;
