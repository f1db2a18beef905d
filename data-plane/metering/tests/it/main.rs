//! The log under a killed process, and the relay against a ledger that fails in every way a network can.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod kafka;
mod killed;
mod ledger;
#[path = "../../../../tests/support/private_kafka.rs"]
mod private_kafka;
mod reader;
mod relay;
mod sender;
mod topics;
