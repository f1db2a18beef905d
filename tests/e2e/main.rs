//! The whole system on real parts: the real binary, a real Postgres, a real model. One file a behaviour.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "tests fail by panicking and make their own clocks"
)]

mod aborts;
mod bad_input;
mod batching;
mod conformance;
mod counts;
mod faults;
mod gpu_driver;
mod hammer;
mod installation_life;
mod internal_rpc;
mod kafka;
mod limits;
mod lost_gateway;
mod prefix_cache;
mod revocation;
mod stability;
