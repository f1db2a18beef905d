//! Limits under a hammer: clients that ask for more than their tenant may have, and leave whenever they like; at the end
//! every stretch of time is held against the limit, by what the ledger says was settled when.
//!
//! Start reading at [`scenario`]; what must hold of every stretch is in [`windows`].

pub mod aborts;
pub mod clients;
pub mod retries;
pub mod scenario;
pub mod windows;
