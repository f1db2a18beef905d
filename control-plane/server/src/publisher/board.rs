//! What the nodes answered: which revision each holds of each resource type, and what it refused and why. In memory:
//! a node that reconnects says it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_domain::node::NodeId;
use weir_schemas::config_snapshot::{ResourceType, Revision};

use crate::metrics::{Metrics, NodeLabels};

/// A reason is shown to operators; a node cannot make it arbitrarily long.
const REASON_CHARS_MAX: usize = 1_000;

/// What a node last answered about one resource type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) revision: Revision,
    /// Why it was refused.
    pub(crate) refused: Option<String>,
}

/// One node, as far as this control plane has heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeStatus {
    pub(crate) connected: bool,
    pub(crate) held: BTreeMap<ResourceType, Held>,
}

impl NodeStatus {
    /// The last revision that the node answered to.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.held.values().map(|held| held.revision).max()
    }
}

#[derive(Debug, Default)]
struct Entry {
    status: NodeStatus,
    /// Which stream is the node's current one: an older one that ends late must not mark it as gone.
    stream: u64,
}

/// All nodes; cheap to clone. It grows with registered nodes only.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    entries: Arc<Mutex<HashMap<String, Entry>>>,
    metrics: Metrics,
}

/// A node's stream: marks it connected until dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    board: Board,
    node: String,
    kind: &'static str,
    stream: u64,
}

impl Board {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { entries: Arc::default(), metrics }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // Every change is one assignment: a panic elsewhere leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a node.
    pub(crate) fn status(&self, node: &str) -> Option<NodeStatus> {
        self.entries().get(node).map(|entry| entry.status.clone())
    }

    /// Notes that a node's stream begins.
    pub(crate) fn connect(&self, id: NodeId) -> Connection {
        let kind = match id {
            NodeId::Gateway(_) => "gateway",
            NodeId::Worker(_) => "worker",
        };
        self.metrics.connected_nodes.get_or_create(&NodeLabels { kind }).inc();
        let node = id.to_string();
        let mut entries = self.entries();
        let entry = entries.entry(node.clone()).or_default();
        entry.stream += 1;
        entry.status.connected = true;
        let stream = entry.stream;
        drop(entries);
        Connection { board: self.clone(), node, kind, stream }
    }
}

impl Connection {
    /// Notes what the node answered about one resource type.
    pub(crate) fn note(&self, kind: ResourceType, revision: Revision, refused: Option<&str>) {
        if let Some(reason) = refused {
            let (node, resource_type) = (&self.node, kind.as_str());
            tracing::error!(node, resource_type, %revision, reason, "a node refuses config");
        }
        let refused = refused.map(|reason| reason.chars().take(REASON_CHARS_MAX).collect());
        if let Some(entry) = self.board.entries().get_mut(&self.node) {
            entry.status.held.insert(kind, Held { revision, refused });
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.board.metrics.connected_nodes.get_or_create(&NodeLabels { kind: self.kind }).dec();
        if let Some(entry) = self.board.entries().get_mut(&self.node)
            && entry.stream == self.stream
        {
            entry.status.connected = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use weir_schemas::ids::GatewayId;

    use super::*;

    #[test]
    fn an_older_stream_that_ends_late_does_not_mark_the_node_as_gone() {
        let board = Board::new(Metrics::register(&mut Registry::default()));
        let id = NodeId::Gateway(GatewayId::from_u128(1));
        let connected = || board.status(&id.to_string()).unwrap().connected;
        let old = board.connect(id);
        let new = board.connect(id);
        drop(old);
        assert!(connected());
        let revision = Revision { epoch: 1, position: 3 };
        new.note(ResourceType::Keys, revision, Some(&"x".repeat(5_000)));
        drop(new);
        assert!(!connected());
        let status = board.status(&id.to_string()).unwrap();
        assert_eq!(status.revision(), Some(revision));
        let reason = status.held[&ResourceType::Keys].refused.as_ref().unwrap();
        assert_eq!(reason.len(), REASON_CHARS_MAX);
    }
}
