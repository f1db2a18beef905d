//! What two Weir processes must agree on, and nothing else: ids, metering records, the config snapshot and,
//! with feature `rpc`, the gRPC stubs and the small amount of protocol both ends share.
//!
//! Plain data: no I/O, no clock of its own, no policy. Start at [`config_snapshot`] for what the control plane
//! tells the data plane, at [`records`] for what the data plane reports back.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]
#![warn(missing_docs)]

pub mod clock;
pub mod config_snapshot;
pub mod error_class;
pub mod ids;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod records;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod sketch;
