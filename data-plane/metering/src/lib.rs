//! The record log (open, progress, close) of one sender, a gateway or a worker, and its relay to the ledger.
//!
//! Owns: that a record, once acknowledged here, reaches the ledger exactly as written, whatever crashes meanwhile.
//! Never: what a record means, what anything costs, or a wait for the network on a request's path.
//! Start reading at [`RecordLog`]; [`Relay`] is its only reader.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod cursor;
mod error;
mod frame;
mod log;
mod relay;
mod segment;
mod sender;

pub use cursor::{Cursor, LogRecord};
pub use error::LogError;
pub use frame::MAX_PAYLOAD_BYTES;
pub use log::{LogOptions, LogStats, OpenEntry, RecordLog, Unclosed};
pub use relay::{
    FlushError, KafkaTransport, Ledger, Relay, RelayMetrics, RelayOptions, Transport, TransportError,
};
