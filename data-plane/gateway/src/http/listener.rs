//! Connections: accepted up to a bound, served as HTTP/1.1 (TLS and HTTP/2 end at a proxy ahead), drained on stop.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use weir_schemas::rpc::listen;

use super::stall_guard::StallGuard;
use crate::self_wakes::without_self_wakes;

/// Bytes of an answer that the kernel holds for a client that does not read: a few hundred chunks. Small, so that a
/// stalled reader is noticed and its memory stays bounded.
const SEND_BUFFER_BYTES: u32 = 64 << 10;
/// Request line and headers: a key is under a kilobyte.
const MAX_HEADER_BYTES: usize = 32 << 10;
/// A client that dribbles its headers, or leaves a kept connection idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// After a failed accept (out of file descriptors), time for some connection to end.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Bounds of the edge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerLimits {
    pub(crate) max_connections: usize,
    pub(crate) slow_reader_timeout: Duration,
}

/// The bound listener, ready to serve.
#[derive(Debug)]
pub(crate) struct HttpServer {
    listener: TcpListener,
    limits: ServerLimits,
    gauge: Gauge,
}

impl HttpServer {
    /// Binds; a taken port is an error unless `port_fallback`. Returns the address that it got besides.
    pub(crate) fn bind(
        address: SocketAddr,
        port_fallback: bool,
        limits: ServerLimits,
        gauge: Gauge,
    ) -> io::Result<(Self, SocketAddr)> {
        let (listener, address) =
            listen::bind(address, port_fallback, |socket| socket.set_send_buffer_size(SEND_BUFFER_BYTES))?;
        Ok((Self { listener, limits, gauge }, address))
    }

    /// Serves until `closing`; then accepts no more and lets requests that are being answered end, until `cut`, which
    /// ends them. Returns when no connection is left.
    pub(crate) async fn serve(self, router: Router, closing: CancellationToken, cut: CancellationToken) {
        let connections = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(self.limits.max_connections));
        loop {
            let accepted = tokio::select! {
                () = closing.cancelled() => break,
                accepted = self.accept(&permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { continue };
            let connection = Connection {
                stream,
                router: router.clone(),
                closing: closing.clone(),
                slow_reader_timeout: self.limits.slow_reader_timeout,
                _open: OpenConnection::new(self.gauge.clone()),
            };
            let cut = cut.clone();
            connections.spawn(async move {
                let _permit = permit;
                cut.run_until_cancelled(without_self_wakes(connection.serve())).await;
            });
        }
        drop(self.listener);
        connections.close();
        if cut.run_until_cancelled(connections.wait()).await.is_none() {
            tracing::warn!(number = connections.len(), "connections are cut: the drain timeout is over");
            connections.wait().await;
        }
    }

    async fn accept(
        &self,
        permits: &Arc<Semaphore>,
    ) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
        let permit = permits.clone().acquire_owned().await.ok()?;
        match self.listener.accept().await {
            Ok((stream, _)) => Some((stream, permit)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                None
            }
        }
    }
}

struct OpenConnection(Gauge);

impl OpenConnection {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Connection {
    stream: TcpStream,
    router: Router,
    closing: CancellationToken,
    slow_reader_timeout: Duration,
    _open: OpenConnection,
}

impl Connection {
    async fn serve(self) {
        if let Err(error) = self.stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let router = self.router;
        let service = service_fn(move |request: Request<Incoming>| {
            let router = router.clone();
            async move { router.oneshot(request.map(Body::new)).await }
        });
        let io = TokioIo::new(StallGuard::new(self.stream, self.slow_reader_timeout));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let outcome = tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = self.closing.cancelled() => {
                // Ends after the request that it is serving, if any.
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
