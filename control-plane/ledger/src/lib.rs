//! The ledger: takes records from gateways and workers, charges each request once, keeps roll-ups and watermarks.
//!
//! Owns: the tables `ledger_*` and the promise that a batch is acknowledged only when its charges, roll-ups and the
//! sender's watermark are committed together. Never: a price of its own (it reads `price_versions`), a change to a
//! row once written, or a float. Start reading at [`start`], then `batch.rs` for what happens to a batch, `consumer.rs`
//! for how one comes out of Kafka.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod batch;
mod config;
mod consumer;
mod dead_letter_relay;
pub mod dead_letters;
mod incoming;
mod metrics;
mod orphans;
mod pricing;
mod rpc;
mod start;
mod store;
mod verify;

pub use config::{Config, ConfigError, RawConfig};
pub use orphans::charge_orphans;
pub use pricing::{Priced, price_unpriced};
pub use start::{Deps, ReadyProbe, Running, StartError, start};
pub use store::{MigrateError, connect, migrate};
pub use verify::{Counts, Difference, Findings, Range, SETTLING, SequenceGap, VerifyReport, verify};
