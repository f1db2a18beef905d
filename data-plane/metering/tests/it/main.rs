//! The log under a killed process, and the relay against a ledger that fails in every way a network can.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod killed;
mod ledger;
mod relay;
