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
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::stall_guard::StallGuard;

/// Connections that the kernel holds while all permits are taken.
const BACKLOG: u32 = 1024;
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
    /// Binds; a taken port is an error unless `port_fallback`.
    pub(crate) fn bind(
        address: SocketAddr,
        port_fallback: bool,
        limits: ServerLimits,
        gauge: Gauge,
    ) -> io::Result<Self> {
        let listener = match listen(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port_fallback => {
                listen(SocketAddr::new(address.ip(), 0))
            }
            outcome => outcome,
        }?;
        Ok(Self { listener, limits, gauge })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`; then accepts no more, lets running requests go on for `drain_timeout`, and cuts what is
    /// left. Returns when no connection is left.
    pub(crate) async fn serve(self, router: Router, stop: CancellationToken, drain_timeout: Duration) {
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let permits = Arc::new(Semaphore::new(self.limits.max_connections));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.accept(&permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { continue };
            let connection = Connection {
                stream,
                router: router.clone(),
                stop: stop.clone(),
                slow_reader_timeout: self.limits.slow_reader_timeout,
                _open: OpenConnection::new(self.gauge.clone()),
            };
            let cut = cut.clone();
            connections.spawn(async move {
                let _permit = permit;
                cut.run_until_cancelled(connection.serve()).await;
            });
        }
        drop(self.listener);
        connections.close();
        if tokio::time::timeout(drain_timeout, connections.wait()).await.is_err() {
            tracing::warn!(number = connections.len(), "connections are cut: the drain timeout is over");
            cut.cancel();
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
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
    stop: CancellationToken,
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
            () = self.stop.cancelled() => {
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
