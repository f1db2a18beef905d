//! The config that is published to the nodes.

pub(crate) mod get;
