//! The event log, for audit.

pub(crate) mod list;
