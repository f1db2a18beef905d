//! What the nodes answered: which revision each holds of each resource type, and what it refused and why. In memory:
//! a node that reconnects says it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use weir_domain::node::NodeId;
use weir_schemas::config_snapshot::{ResourceType, Revision};

use crate::metrics::{Metrics, NodeLabels};

/// A reason is shown to operators; a node cannot make it arbitrarily long.
const REASON_CHARS_MAX: usize = 1_000;

/// How long a write waits for the gateways to hold what it changed. A connected one answers within milliseconds; one
/// that hangs must not hold up an operator for longer than a revocation may take.
const IN_FORCE_TIMEOUT: Duration = Duration::from_millis(500);

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
    /// The last revision of which it has answered everything that it was sent, if only that nothing had changed.
    answered: Option<Revision>,
}

impl NodeStatus {
    /// The last revision that the node answered to.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.held.values().map(|held| held.revision).chain(self.answered).max()
    }
}

#[derive(Debug, Default)]
struct Entry {
    status: NodeStatus,
    /// Which stream is the node's current one: an older one that ends late must not mark it as gone.
    stream: u64,
    is_gateway: bool,
    /// The last position of which the current stream's node has answered everything that it was sent.
    answered_position: u64,
}

/// All nodes; cheap to clone. It grows with registered nodes only.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    entries: Arc<Mutex<HashMap<String, Entry>>>,
    /// Changes whenever a wait for the gateways may be over.
    answers: watch::Sender<()>,
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
        Self { entries: Arc::default(), answers: watch::Sender::new(()), metrics }
    }

    /// Resolves when every connected gateway holds the config of `position` or has refused it, or after
    /// [`IN_FORCE_TIMEOUT`]: so that who makes a key can use it, and who revokes one knows that it is refused.
    pub(crate) async fn in_force(&self, position: u64) {
        let mut answers = self.answers.subscribe();
        let lags =
            |entry: &Entry| entry.is_gateway && entry.status.connected && entry.answered_position < position;
        let waiting = answers.wait_for(|()| !self.entries().values().any(lags));
        if tokio::time::timeout(IN_FORCE_TIMEOUT, waiting).await.is_err() {
            tracing::warn!(
                position,
                "a gateway does not answer to the config; it may still act on the one before"
            );
        }
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
        entry.is_gateway = matches!(id, NodeId::Gateway(_));
        entry.answered_position = 0;
        let stream = entry.stream;
        drop(entries);
        Connection { board: self.clone(), node, kind, stream }
    }
}

impl Connection {
    /// Notes that the node has answered everything that it was sent up to `revision`.
    pub(crate) fn answered(&self, revision: Revision) {
        if let Some(entry) = self.board.entries().get_mut(&self.node)
            && entry.stream == self.stream
        {
            entry.answered_position = revision.position;
            entry.status.answered = Some(revision);
        }
        self.board.answers.send_replace(());
    }

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
        self.board.answers.send_replace(());
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

    #[tokio::test]
    async fn a_write_waits_for_connected_gateways_and_for_no_one_else() {
        let board = Board::new(Metrics::register(&mut Registry::default()));
        let _worker = board.connect(NodeId::Worker(weir_schemas::ids::WorkerId::from_u128(2)));
        board.in_force(9).await;
        let gateway = board.connect(NodeId::Gateway(GatewayId::from_u128(1)));
        let mut in_force = std::pin::pin!(board.in_force(9));
        let briefly = Duration::from_millis(5);
        assert!(tokio::time::timeout(briefly, &mut in_force).await.is_err());
        let revision = |position| Revision { epoch: 1, position };
        gateway.answered(revision(8));
        assert!(tokio::time::timeout(briefly, &mut in_force).await.is_err());
        gateway.answered(revision(9));
        in_force.await;
        // One that hangs is not waited for for ever, and one that leaves not at all.
        board.in_force(10).await;
        drop(gateway);
        assert!(tokio::time::timeout(briefly, board.in_force(11)).await.is_ok());
    }
}
