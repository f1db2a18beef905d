//! What the end-to-end tests and the load test share: a whole installation of one's own, and clients for it.
//! Nothing here is part of the product.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "equipment of tests: it fails by panicking"
)]

pub mod api;
pub mod cluster;
pub mod conformance;
pub mod faults;
pub mod hammer;
pub mod installation;
pub mod json_schema;
pub mod ledger;
pub mod memory;
pub mod metrics;
pub mod overload;
#[path = "../support/private_kafka.rs"]
pub mod private_kafka;
#[path = "../support/private_postgres.rs"]
pub mod private_postgres;
pub mod verdict;
pub mod wait;
