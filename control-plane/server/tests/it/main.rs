//! The control plane against a real Postgres, through its own API and config stream.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod access;
mod api;
mod contract;
mod event_log;
mod event_relay;
mod keys;
mod outage;
#[path = "../../../../tests/support/private_kafka.rs"]
mod private_kafka;
#[path = "../../../../tests/support/private_postgres.rs"]
mod private_postgres;
mod stream;
mod support;
mod usage;
