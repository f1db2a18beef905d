//! The ledger as a consumer of a real Kafka, on a real Postgres.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod broker;
mod charged_once;
mod compression;
mod lives;
mod logins;
mod odd_records;
mod rebalance;

#[path = "../../../../tests/support/private_kafka.rs"]
mod private_kafka;
#[path = "../../../../tests/support/private_postgres.rs"]
mod private_postgres;
#[allow(dead_code, reason = "shared with the tests without a broker")]
#[path = "../it/support.rs"]
mod support;
