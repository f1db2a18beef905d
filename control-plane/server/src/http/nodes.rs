//! Nodes: gateways and workers that have said who they are, what config they hold, and what they refused.

pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod retire;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::node::{Node, NodeId};

use crate::publisher::NodeStatus;
use crate::store::nodes::NodeRow;

/// What a node holds of one resource type.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HeldResource)]
pub(crate) struct HeldView {
    /// Which resource type.
    #[schema(example = "keys")]
    pub(crate) resource_type: String,
    /// `applied` or `refused`.
    #[schema(example = "applied")]
    pub(crate) outcome: String,
    /// The revision it answers to.
    #[schema(example = "1790000000.17")]
    pub(crate) revision: String,
    /// Why it was refused; the node's last good state of the type stays in force.
    pub(crate) reason: Option<String>,
}

/// A gateway or worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
pub(crate) struct NodeView {
    /// Its id.
    #[schema(example = "gtw_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// `gateway` or `worker`.
    pub(crate) kind: String,
    /// Its current run.
    pub(crate) instance: String,
    /// Where others reach it.
    pub(crate) address: String,
    /// The pool that a worker serves.
    pub(crate) pool: String,
    /// When it first registered.
    pub(crate) registered_at: DateTime<Utc>,
    /// When an operator retired it, if one did.
    pub(crate) retired_at: Option<DateTime<Utc>>,
    /// Whether it follows this control plane's config stream now.
    pub(crate) connected: bool,
    /// The last revision that it answered to, as far as this control plane has heard.
    pub(crate) revision: Option<String>,
    /// What it holds of each resource type, as far as this control plane has heard.
    pub(crate) resources: Vec<HeldView>,
}

impl NodeView {
    fn of_row(row: NodeRow, status: Option<NodeStatus>) -> Self {
        let status = status.unwrap_or_default();
        let resources = status.held.iter().map(|(kind, held)| HeldView {
            resource_type: kind.as_str().to_owned(),
            outcome: if held.refused.is_some() { "refused" } else { "applied" }.to_owned(),
            revision: held.revision.to_string(),
            reason: held.refused.clone(),
        });
        Self {
            id: row.node_id,
            kind: row.kind,
            instance: row.instance,
            address: row.address,
            pool: row.pool,
            registered_at: row.registered_at,
            retired_at: row.retired_at,
            connected: status.connected,
            revision: status.revision().map(|revision| revision.to_string()),
            resources: resources.collect(),
        }
    }

    fn of_node(node: &Node, status: Option<NodeStatus>) -> Self {
        let kind = match node.id {
            NodeId::Gateway(_) => "gateway",
            NodeId::Worker(_) => "worker",
        };
        let row = NodeRow {
            node_id: node.id.to_string(),
            kind: kind.to_owned(),
            instance: node.registration.instance.to_string(),
            address: node.registration.address.clone(),
            pool: node.registration.pool.clone(),
            registered_at: node.registered_at,
            retired_at: node.retired_at,
        };
        Self::of_row(row, status)
    }
}
