//! The ledger as it is served, on a real Postgres.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod dead_letters;
mod faults;
mod money;
mod orphan_property;
mod orphans;
mod property;
mod records;
#[allow(dead_code, reason = "the tests with a broker use the rest")]
mod support;
mod tampering;
mod tenants;
mod verify;

#[path = "../../../../tests/support/private_postgres.rs"]
mod private_postgres;
