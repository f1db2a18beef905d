//! A node's side of the config stream: keep the last good snapshot in memory and on disk, apply each resource type
//! whole or refuse it with a reason, acknowledge, reconnect for ever. It never blocks what the node serves.
//!
//! It never goes back: an update of an older revision is a control plane that lags (a stale one could bring a revoked
//! key back), and one that leaves a gap is not built upon; after either the node reconnects and is sent what differs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::auth::InternalSecret;
use super::config::config_client::ConfigClient as Stub;
use super::config::node_message::Kind;
use super::config::{
    Applied, ConfigUpdate, HeldResources, Hello, NodeKind, NodeMessage, Refused, ResourceSet,
};
use super::snapshot_file;
use crate::config_snapshot::{ConfigSnapshot, ResourceError, ResourceType, Resources, Revision, digest};

/// First and longest wait between connection attempts. What a control plane publishes after its return must be in
/// force within a second, so even the longest is well below one.
const RECONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A dead peer is noticed within this and half as much again.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Acknowledgements under way; the stream is one update at a time with a handful of types in it.
const OUTGOING_MESSAGES: usize = 64;
/// Largest update accepted: the snapshot file's bound, for the same reason.
const MAX_UPDATE_BYTES: usize = 1 << 30;

/// Who the node is, as it says in its hello.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// Gateway or worker id.
    pub node_id: String,
    /// Which of the two.
    pub kind: NodeKind,
    /// This run of the process.
    pub instance: String,
    /// `http://host:port` where others reach it.
    pub address: String,
    /// Pool that a worker serves; empty for a gateway.
    pub pool: String,
}

/// A check beyond the type's own, by the node: what it cannot honour it must refuse. The text is shown to operators.
pub type Validate = Arc<dyn Fn(ResourceType, &Resources) -> Result<(), String> + Send + Sync>;

/// How to reach the control plane.
#[derive(Clone)]
pub struct ConfigClientOptions {
    /// `http://host:port` of the control plane's RPC.
    pub control_plane: String,
    /// The installation's secret.
    pub secret: InternalSecret,
    /// Where the last good snapshot is kept.
    pub snapshot_path: PathBuf,
    /// Who asks.
    pub identity: NodeIdentity,
    /// The node's own check of each candidate.
    pub validate: Validate,
}

impl std::fmt::Debug for ConfigClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigClientOptions")
            .field("control_plane", &self.control_plane)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// Why an update cannot be built upon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ResyncError {
    #[error("the control plane sent revision {sent}, which is older than {held}")]
    Older { sent: Revision, held: Revision },
    #[error("revision {revision} does not continue what this node holds of {resource_type}")]
    Gap { revision: Revision, resource_type: String },
}

/// Follows the config stream; [`ConfigClient::snapshots`] always shows the last good snapshot.
#[derive(Debug)]
pub struct ConfigClient {
    options: ConfigClientOptions,
    snapshots: watch::Sender<Arc<ConfigSnapshot>>,
    /// By resource type, the digest of what was refused last.
    refused: Mutex<HashMap<String, String>>,
}

impl ConfigClient {
    /// Starts from the snapshot on disk, or from an empty one. A damaged file is logged and passed over.
    pub fn new(options: ConfigClientOptions) -> Self {
        let snapshot = snapshot_file::load(&options.snapshot_path).unwrap_or_else(|error| {
            let path = options.snapshot_path.display();
            tracing::warn!(%error, %path, "the stored config snapshot is unusable; starting without it");
            None
        });
        if let Some(snapshot) = &snapshot {
            tracing::info!(revision = %snapshot.revision, "starting from the stored config snapshot");
        }
        let (snapshots, _) = watch::channel(Arc::new(snapshot.unwrap_or_default()));
        Self { options, snapshots, refused: Mutex::default() }
    }

    /// The last good snapshot, and each later one.
    pub fn snapshots(&self) -> watch::Receiver<Arc<ConfigSnapshot>> {
        self.snapshots.subscribe()
    }

    /// Follows the stream until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut wait = RECONNECT_WAIT.0;
        let mut failures = 0u64;
        loop {
            let before = self.snapshots.borrow().revision;
            let outcome = tokio::select! {
                () = cancel.cancelled() => return,
                outcome = self.follow() => outcome,
            };
            if self.snapshots.borrow().revision != before {
                (wait, failures) = (RECONNECT_WAIT.0, 0);
            }
            match outcome {
                Ok(()) => tracing::info!("the config stream ended; reconnecting"),
                Err(error) => {
                    failures += 1;
                    // Loud at first, then once in a while: an outage must not fill the disk with its own logs.
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "no config stream; serving from the last good snapshot");
                    }
                }
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(RECONNECT_WAIT.1);
        }
    }

    async fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        Endpoint::from_shared(self.options.control_plane.clone())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE / 2)
            .connect()
            .await
    }

    async fn follow(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let channel = self.connect().await?;
        let mut stub = Stub::with_interceptor(channel, self.options.secret.attach())
            .max_decoding_message_size(MAX_UPDATE_BYTES);
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MESSAGES);
        outgoing.send(NodeMessage { kind: Some(Kind::Hello(self.hello())) }).await?;
        let mut updates = stub.subscribe(ReceiverStream::new(receiver)).await?.into_inner();
        tracing::info!(control_plane = self.options.control_plane, "the config stream is open");
        while let Some(update) = updates.message().await? {
            for reply in self.apply(update)? {
                outgoing.send(NodeMessage { kind: Some(reply) }).await?;
            }
        }
        Ok(())
    }

    fn hello(&self) -> Hello {
        let identity = &self.options.identity;
        let snapshot = self.snapshots.borrow().clone();
        let held = |&kind: &ResourceType| HeldResources {
            resource_type: kind.as_str().to_owned(),
            digest: digest(&snapshot.resources.to_json(kind)),
        };
        Hello {
            node_id: identity.node_id.clone(),
            kind: identity.kind.into(),
            instance: identity.instance.clone(),
            address: identity.address.clone(),
            pool: identity.pool.clone(),
            held: ResourceType::ALL.iter().map(held).collect(),
            revision: Some(snapshot.revision.into()),
        }
    }

    /// Applies what can be applied, publishes and stores the result, and returns the answers.
    fn apply(&self, update: ConfigUpdate) -> Result<Vec<Kind>, ResyncError> {
        let revision = update.revision.unwrap_or_default();
        let held = self.snapshots.borrow().clone();
        self.check_continues(&held, &update)?;
        let mut next = ConfigSnapshot::clone(&held);
        next.revision = revision.into();
        let mut replies = Vec::with_capacity(update.sets.len());
        for set in update.sets {
            replies.push(match self.apply_set(&mut next.resources, &set) {
                Ok(()) => Kind::Applied(Applied {
                    revision: Some(revision),
                    resource_type: set.resource_type,
                    digest: set.digest,
                }),
                Err(error) => {
                    self.note_refused(&set);
                    tracing::error!(%error, resource_type = set.resource_type, revision = %next.revision, "config refused; the last good state of this type stays in force");
                    Kind::Refused(Refused {
                        revision: Some(revision),
                        resource_type: set.resource_type,
                        digest: set.digest,
                        reason: error.to_string(),
                    })
                }
            });
        }
        // In force first, on disk second: a full disk must not hold back a revocation.
        let next = Arc::new(next);
        self.snapshots.send_replace(next.clone());
        if let Err(error) = snapshot_file::store(&self.options.snapshot_path, &next) {
            tracing::error!(%error, "the config snapshot could not be stored; a restart would begin from an older one");
        }
        Ok(replies)
    }

    /// Whether this node, with what is sent now, holds everything of the update's revision.
    fn check_continues(&self, held: &ConfigSnapshot, update: &ConfigUpdate) -> Result<(), ResyncError> {
        let revision: Revision = update.revision.unwrap_or_default().into();
        if revision < held.revision {
            return Err(ResyncError::Older { sent: revision, held: held.revision });
        }
        let sent = |name: &str| update.sets.iter().any(|set| set.resource_type == name);
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        for all in update.all.iter().filter(|all| !sent(&all.resource_type)) {
            // A type that this node does not know is refused when it is sent.
            let Ok(kind) = ResourceType::from_name(&all.resource_type) else { continue };
            if digest(&held.resources.to_json(kind)) != all.digest
                && refused.get(&all.resource_type) != Some(&all.digest)
            {
                return Err(ResyncError::Gap { revision, resource_type: all.resource_type.clone() });
            }
        }
        Ok(())
    }

    fn note_refused(&self, set: &ResourceSet) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert(set.resource_type.clone(), set.digest.clone());
    }

    fn apply_set(&self, resources: &mut Resources, set: &ResourceSet) -> Result<(), ResourceError> {
        let received = digest(&set.json);
        if received != set.digest {
            return Err(ResourceError::Digest { announced: set.digest.clone(), received });
        }
        let kind = ResourceType::from_name(&set.resource_type)?;
        let mut candidate = resources.clone();
        candidate.apply(kind, &set.json)?;
        (self.options.validate)(kind, &candidate).map_err(|reason| ResourceError::Invalid { reason })?;
        *resources = candidate;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
