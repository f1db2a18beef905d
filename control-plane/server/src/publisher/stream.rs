//! `weir.config.v1.Config`: one stream a node. Hello registers it; then it gets every resource type whose digest
//! differs from what it holds, at once and with each new revision, and answers for each.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use weir_domain::node::{Node, NodeCommand, NodeId, Registration};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::{ResourceType, Revision};
use weir_schemas::error_class::ErrorClass;
use weir_schemas::rpc::config::config_server::Config;
use weir_schemas::rpc::config::node_message::Kind;
use weir_schemas::rpc::config::{ConfigUpdate, Hello, NodeKind, NodeMessage, ResourceSet};

use super::board::Connection;
use super::{Board, Published};
use crate::scope::PlatformScope;
use crate::store::{Store, StoreError};

/// A database that hangs must not leave nodes waiting for an answer: they ask again.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(10);
/// A node says hello at once; who does not is no node.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Updates under way to one node: a node that lags is sent the newest state, not each one.
const UPDATES_UNDER_WAY: usize = 1;

/// The service; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConfigService {
    pub(crate) store: Store,
    pub(crate) board: Board,
    pub(crate) clock: Clock,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    /// The database has been there and its schema is this program's.
    pub(crate) prepared: watch::Receiver<bool>,
    pub(crate) tasks: TaskTracker,
    pub(crate) cancel: CancellationToken,
}

#[tonic::async_trait]
impl Config for ConfigService {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<ConfigUpdate, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<NodeMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut incoming = request.into_inner();
        let first = tokio::time::timeout(HELLO_TIMEOUT, incoming.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no hello"))??;
        let Some(NodeMessage { kind: Some(Kind::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first message must be a hello"));
        };
        let (id, registration) = identify(&hello)?;
        if !*self.prepared.borrow() {
            return Err(Status::unavailable("the control plane waits for its database"));
        }
        let registering = async {
            self.outgrow(&hello).await?;
            self.register(id, registration).await
        };
        let position = tokio::time::timeout(REGISTER_TIMEOUT, registering)
            .await
            .map_err(|_| Status::unavailable("the database does not answer"))??;
        let (outgoing, updates) = mpsc::channel(UPDATES_UNDER_WAY);
        let subscription = Subscription {
            node: id.to_string(),
            registered_at: position,
            held: hello.held.into_iter().map(|held| (held.resource_type, held.digest)).collect(),
            unanswered: HashSet::new(),
            sent: None,
            connection: self.board.connect(id),
        };
        let serving = subscription.serve(self.published.clone(), incoming, outgoing);
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            cancel.run_until_cancelled(serving).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(updates))))
    }
}

fn identify(hello: &Hello) -> Result<(NodeId, Registration), Status> {
    let invalid = |what: &str| Status::invalid_argument(format!("the hello's {what} cannot be read"));
    let id: NodeId = hello.node_id.parse().map_err(|_| invalid("node_id"))?;
    let same_kind = match id {
        NodeId::Gateway(_) => hello.kind() == NodeKind::Gateway,
        NodeId::Worker(_) => hello.kind() == NodeKind::Worker,
    };
    if !same_kind {
        return Err(Status::invalid_argument("the hello's kind is not that of its node_id"));
    }
    let instance = hello.instance.parse().map_err(|_| invalid("instance"))?;
    Ok((id, Registration { instance, address: hello.address.clone(), pool: hello.pool.clone() }))
}

impl ConfigService {
    /// A node that holds a later revision than there is has outlived a restore of the database.
    async fn outgrow(&self, hello: &Hello) -> Result<(), Status> {
        let Some(held) = hello.revision else { return Ok(()) };
        let held = Revision::from(held);
        let current = self.store.revision(PlatformScope::proven()).await.map_err(status)?;
        if held > current && self.store.outgrow(held, self.clock.now()).await.map_err(status)? {
            tracing::error!(node = hello.node_id, %held, %current,
                "a node holds a later config than the log can have given it: the database was restored; a new epoch begins");
        }
        Ok(())
    }

    /// Notes what the node says about itself; returns a position that includes it.
    async fn register(&self, id: NodeId, registration: Registration) -> Result<u64, Status> {
        let now = self.clock.now();
        let mut write = self.store.begin("node", now).await.map_err(status)?;
        let command = NodeCommand::Register { id, registration, now };
        write.execute::<Node>(id, None, command).await.map_err(status)?;
        write.commit().await.map_err(status)
    }
}

fn status(error: StoreError) -> Status {
    match error.class() {
        ErrorClass::Invalid => Status::invalid_argument(error.to_string()),
        ErrorClass::Conflict => Status::failed_precondition(error.to_string()),
        ErrorClass::Unavailable => Status::unavailable(error.to_string()),
        ErrorClass::NotFound
        | ErrorClass::Unauthenticated
        | ErrorClass::Forbidden
        | ErrorClass::RateLimited
        | ErrorClass::Capacity
        | ErrorClass::Deadline
        | ErrorClass::Cancelled
        | ErrorClass::Internal => {
            tracing::error!(error = &error as &dyn std::error::Error, "a node could not be registered");
            Status::internal("the control plane could not register the node; see its log")
        }
    }
}

/// One node's stream.
#[derive(Debug)]
struct Subscription {
    node: String,
    /// A published state before this position does not know the node yet.
    registered_at: u64,
    /// Digest by resource type: what the node holds or has been sent.
    held: HashMap<String, String>,
    /// Resource types whose last state the node has not answered to.
    unanswered: HashSet<String>,
    sent: Option<Revision>,
    connection: Connection,
}

impl Subscription {
    async fn serve(
        mut self,
        mut published: watch::Receiver<Arc<Published>>,
        mut incoming: Streaming<NodeMessage>,
        outgoing: mpsc::Sender<Result<ConfigUpdate, Status>>,
    ) {
        let mut has_news = true;
        loop {
            tokio::select! {
                permit = outgoing.reserve(), if has_news => {
                    let Ok(permit) = permit else { return };
                    let state = published.borrow_and_update().clone();
                    has_news = false;
                    if state.revision.position < self.registered_at {
                        continue;
                    }
                    if !state.in_service.contains(&self.node) {
                        permit.send(Err(Status::failed_precondition("this node is retired")));
                        return;
                    }
                    if let Some(update) = self.update(&state) {
                        permit.send(Ok(update));
                    }
                }
                changed = published.changed() => match changed {
                    Ok(()) => has_news = true,
                    Err(_) => return,
                },
                message = incoming.message() => match message {
                    Ok(Some(message)) => self.note(message),
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }

    /// What the node lacks of `state`; nothing if it has been sent this revision and lacks nothing.
    fn update(&mut self, state: &Published) -> Option<ConfigUpdate> {
        let mut sets = Vec::new();
        for set in &state.sets {
            let name = set.kind.as_str();
            if self.held.get(name) == Some(&set.digest) {
                // Said by its hello: after a restart of this control plane that is how it is known.
                if self.sent.is_none() {
                    self.connection.note(set.kind, state.revision, None);
                }
            } else {
                self.held.insert(name.to_owned(), set.digest.clone());
                self.unanswered.insert(name.to_owned());
                sets.push(ResourceSet {
                    resource_type: name.to_owned(),
                    digest: set.digest.clone(),
                    json: set.json.to_vec(),
                });
            }
        }
        let is_new = self.sent.replace(state.revision) != Some(state.revision);
        self.tell_board();
        (is_new || !sets.is_empty()).then(|| ConfigUpdate {
            revision: Some(state.revision.into()),
            sets,
            all: state.digests(),
        })
    }

    fn tell_board(&self) {
        if let Some(sent) = self.sent
            && self.unanswered.is_empty()
        {
            self.connection.answered(sent);
        }
    }

    fn note(&mut self, message: NodeMessage) {
        let (revision, name, digest, reason) = match message.kind {
            Some(Kind::Applied(it)) => (it.revision, it.resource_type, it.digest, None),
            Some(Kind::Refused(it)) => (it.revision, it.resource_type, it.digest, Some(it.reason)),
            // A second hello changes nothing: a node that changes reconnects.
            Some(Kind::Hello(_)) | None => return,
        };
        if let Ok(kind) = ResourceType::from_name(&name) {
            self.connection.note(kind, revision.unwrap_or_default().into(), reason.as_deref());
        }
        // An answer to an older state is not one to the last.
        if self.held.get(&name) == Some(&digest) && self.unanswered.remove(&name) {
            self.tell_board();
        }
    }
}
