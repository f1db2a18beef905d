//! The config publisher: turns the read models into the resource types that gateways and workers hold, at the
//! revision of the last event, and streams what differs to each node.
//!
//! Start at [`published`] for what is published, [`follow`] for when, [`stream`] for one node's stream, [`board`] for
//! what the nodes answered.

mod board;
mod follow;
mod published;
mod stream;

pub(crate) use board::{Board, NodeStatus};
pub(crate) use follow::follow;
pub(crate) use published::Published;
pub(crate) use stream::ConfigService;
