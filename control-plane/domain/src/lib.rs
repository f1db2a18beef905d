//! What the control plane decides, and nothing else: for each aggregate a pure `decide` (command to events, or a
//! refusal) and a pure `evolve` (event to state). No async, SQL, HTTP, clock or randomness: ids and `now` come in
//! with the command. What spans aggregates (a name taken, a version that exists) is the server's to hold.
//!
//! Start at [`aggregate::Aggregate`]; then any aggregate, [`tenant`] being the richest.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

pub mod aggregate;
pub mod alias;
pub mod deployment;
pub mod envelope;
pub mod event;
pub mod key;
pub mod model;
pub mod node;
pub mod platform;
pub mod price_book;
pub mod refusal;
pub mod signing_key;
pub mod tenant;
mod validate;
pub mod version;
