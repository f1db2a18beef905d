//! The config stream's server side: publishes what a test says, remembers the answers.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};
use weir_schemas::config_snapshot::{ConfigSnapshot, ResourceType, digest};
use weir_schemas::rpc::auth::InternalSecret;
use weir_schemas::rpc::config::config_server::{Config, ConfigServer};
use weir_schemas::rpc::config::node_message::Kind;
use weir_schemas::rpc::config::{ConfigUpdate, NodeMessage, ResourceSet};

pub struct ControlPlane {
    pub address: SocketAddr,
    published: watch::Sender<ConfigSnapshot>,
    answers: Arc<Mutex<Vec<Kind>>>,
    _server: AbortOnDropHandle<()>,
}

struct Service {
    published: watch::Sender<ConfigSnapshot>,
    answers: Arc<Mutex<Vec<Kind>>>,
}

impl ControlPlane {
    pub async fn start(snapshot: ConfigSnapshot, secret: InternalSecret) -> Self {
        let (listener, address) = super::listener().await;
        let published = watch::Sender::new(snapshot);
        let answers: Arc<Mutex<Vec<Kind>>> = Arc::default();
        let service = Service { published: published.clone(), answers: answers.clone() };
        let server = tokio::task::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(ConfigServer::with_interceptor(service, secret.require()))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self { address, published, answers, _server: AbortOnDropHandle::new(server) }
    }

    /// Publishes the next revision.
    pub fn change(&self, change: impl FnOnce(&mut ConfigSnapshot)) {
        self.published.send_modify(|snapshot| {
            snapshot.revision.position += 1;
            change(snapshot);
        });
    }

    /// The revision in force that the gateway acknowledged last for a type.
    pub fn applied(&self, kind: ResourceType) -> u64 {
        let applied = |answer: &Kind| match answer {
            Kind::Applied(applied) if applied.resource_type == kind.as_str() => applied.revision,
            _ => None,
        };
        self.answers.lock().iter().filter_map(applied).map(|revision| revision.position).max().unwrap_or(0)
    }

    pub fn refusals(&self) -> Vec<(String, String)> {
        let refused = |answer: &Kind| match answer {
            Kind::Refused(refused) => Some((refused.resource_type.clone(), refused.reason.clone())),
            _ => None,
        };
        self.answers.lock().iter().filter_map(refused).collect()
    }
}

#[tonic::async_trait]
impl Config for Service {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<ConfigUpdate, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<NodeMessage>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (mut incoming, answers) = (request.into_inner(), self.answers.clone());
        let reader = tokio::task::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                answers.lock().extend(message.kind);
            }
        });
        let reader = AbortOnDropHandle::new(reader);
        let updates = WatchStream::new(self.published.subscribe()).map(move |snapshot| {
            let _owned = &reader;
            Ok(update(&snapshot))
        });
        Ok(Response::new(updates.boxed()))
    }
}

fn update(snapshot: &ConfigSnapshot) -> ConfigUpdate {
    let set = |&kind: &ResourceType| {
        let json = snapshot.resources.to_json(kind);
        ResourceSet { resource_type: kind.as_str().into(), digest: digest(&json), json }
    };
    ConfigUpdate {
        revision: Some(snapshot.revision.into()),
        sets: ResourceType::ALL.iter().map(set).collect(),
        all: Vec::new(),
    }
}
