//! Integration tests of the engine, one binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::allow_attributes,
    clippy::cast_possible_truncation
)]

mod golden;
