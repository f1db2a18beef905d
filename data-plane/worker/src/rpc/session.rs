//! One gateway's stream: requests in, one message a step out.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use weir_schemas::ids::GatewayId;
use weir_schemas::rpc::worker::session_request::Kind;
use weir_schemas::rpc::worker::{Cancel, SessionRequest, StepMessage};

use super::{Replies, WorkerService, generate};
use crate::session::Session;

/// A stream that does not say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers with the outgoing half at once; the hello is awaited behind it, because a gateway may wait for the
/// response's headers before it sends one.
pub(super) fn start(service: WorkerService, mut incoming: Streaming<SessionRequest>) -> Replies<StepMessage> {
    let opened = async move {
        let gateway = match hello(&mut incoming).await {
            Ok(gateway) => gateway,
            Err(status) => return stream::once(async move { Err(status) }).boxed(),
        };
        let (session, outbound) = service.sessions.open(gateway.to_string());
        tracing::info!(%gateway, session = session.id, "session opened");
        let cut = session.clone();
        let tasks = service.tasks.clone();
        let reader = session.clone();
        tasks.spawn(async move {
            serve(&service, &reader, incoming).await;
            reader.close();
            service.sessions.remove(&reader);
            tracing::info!(gateway = reader.gateway, session = reader.id, "session ended");
        });
        let messages = ReceiverStream::new(outbound).map(Ok);
        let end = stream::once(async { Err(Status::aborted("the worker ended the session")) });
        messages.take_until(async move { cut.cut().await }).chain(end).boxed()
    };
    stream::once(opened).flatten().boxed()
}

async fn hello(incoming: &mut Streaming<SessionRequest>) -> Result<GatewayId, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, incoming.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello"))??;
    match first.and_then(|message| message.kind) {
        Some(Kind::Hello(hello)) => hello
            .gateway_id
            .parse()
            .map_err(|error| Status::invalid_argument(format!("hello.gateway_id: {error}"))),
        Some(Kind::Generate(_) | Kind::Cancel(_)) | None => {
            Err(Status::failed_precondition("the first message of a session is its hello"))
        }
    }
}

async fn serve(service: &WorkerService, session: &Arc<Session>, mut incoming: Streaming<SessionRequest>) {
    loop {
        let message = tokio::select! {
            () = session.reader_gone() => return,
            message = incoming.message() => message,
        };
        match message {
            Ok(Some(SessionRequest { kind: Some(kind) })) => match kind {
                // Not raced against the session's end: what is open in the record log must be handed over.
                Kind::Generate(generate) => generate::start(service, session, generate).await,
                Kind::Cancel(Cancel { handle, only_if_waiting: true }) => session.cancel_if_waiting(handle),
                Kind::Cancel(Cancel { handle, .. }) => session.cancel(handle),
                Kind::Hello(_) => tracing::warn!(gateway = session.gateway, "a second hello is ignored"),
            },
            Ok(Some(SessionRequest { kind: None })) => {
                tracing::warn!(gateway = session.gateway, "a message of an unknown kind is ignored");
            }
            Ok(None) => return,
            Err(status) => {
                tracing::info!(gateway = session.gateway, code = ?status.code(), "the session broke");
                return;
            }
        }
    }
}
