//! gRPC stubs (feature `rpc`) and what both ends of an internal call must do alike: the shared secret
//! ([`auth`]), a node's side of the config stream ([`config_client`]), its id ([`node_id`]), its listener ([`listen`]),
//! the checks of its settings ([`setting`]) and the columns of a step's tokens ([`step_message`]).

pub mod auth;
pub mod config_client;
pub mod listen;
pub mod node_id;
pub mod setting;
mod snapshot_file;
pub mod step_message;

/// Control plane to nodes: `weir.config.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::allow_attributes, reason = "generated")]
pub mod config {
    tonic::include_proto!("weir.config.v1");
}

/// Data plane to ledger: `weir.ledger.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::allow_attributes, reason = "generated")]
pub mod ledger {
    tonic::include_proto!("weir.ledger.v1");
}

/// Gateway to worker: `weir.worker.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::allow_attributes, reason = "generated")]
pub mod worker {
    tonic::include_proto!("weir.worker.v1");
}

impl From<crate::config_snapshot::Revision> for config::Revision {
    fn from(revision: crate::config_snapshot::Revision) -> Self {
        Self { epoch: revision.epoch, position: revision.position }
    }
}

impl From<config::Revision> for crate::config_snapshot::Revision {
    fn from(revision: config::Revision) -> Self {
        Self { epoch: revision.epoch, position: revision.position }
    }
}
