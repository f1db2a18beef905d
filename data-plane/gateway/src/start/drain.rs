//! How a gateway stops. `/readyz` says no at once and goes on answering to the end. Requests are still taken for the
//! stop notice, so that a load balancer can turn away; then none is, and running ones may go on to their end or the
//! drain timeout, those of an Idempotency-Key also without their client. Their records are closed, and the record log is handed on as far as the ledger takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_metering::Relay;

use super::Background;
use crate::http::{Edge, HttpServer, router};
use crate::rejections::Rejections;

/// Cancellations still under way after the last connection is closed: a worker answers within a step, or the
/// cancellation's own timeout (10 s) ends it.
const CANCELLATIONS_TIMEOUT: Duration = Duration::from_secs(12);
/// What the ledger has not confirmed by then is sent at the next start.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is looked whether the last request has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Serves, and stops in order.
pub(super) struct Stopper {
    pub(super) edge: Arc<Edge>,
    pub(super) server: HttpServer,
    pub(super) stop_notice: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) background: Background,
    pub(super) rejections: Arc<Rejections>,
    pub(super) relay: Relay,
    pub(super) relay_cancel: CancellationToken,
}

impl Stopper {
    pub(super) async fn run(self, cancel: CancellationToken) {
        let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
        let serving = self.server.serve(router(self.edge.clone()), closing.clone(), cut.clone());
        let draining = async {
            cancel.cancelled().await;
            self.edge.stopping.store(true, Ordering::Relaxed);
            tracing::info!(notice = ?self.stop_notice, timeout = ?self.drain_timeout, "gateway stopping");
            tokio::time::sleep(self.stop_notice).await;
            self.edge.refusing.store(true, Ordering::Relaxed);
            let deadline = Instant::now() + self.drain_timeout;
            let progress = &self.edge.pipeline.generation.progress;
            while progress.running() > 0 && Instant::now() < deadline {
                tokio::time::sleep(DRAIN_POLL).await;
            }
            closing.cancel();
            tokio::time::sleep_until(deadline).await;
            cut.cancel();
        };
        tokio::select! {
            () = serving => {}
            // Ends the connections; serving then ends too.
            () = async { draining.await; std::future::pending().await } => {}
        }
        self.edge.idempotency.stop();
        let requests = &self.edge.tasks;
        requests.close();
        if tokio::time::timeout(CANCELLATIONS_TIMEOUT, requests.wait()).await.is_err() {
            tracing::error!(
                number = requests.len(),
                "cancellations are left open; their records are closed at the next start"
            );
        }
        self.background.cancel.cancel();
        self.background.tasks.close();
        self.background.tasks.wait().await;
        self.rejections.flush(self.edge.clock.now(), true);
        if let Err(left) = self.relay.flush(Instant::now() + FLUSH_TIMEOUT).await {
            tracing::warn!(pending = left.pending, "records wait for the ledger until the next start");
        }
        self.relay_cancel.cancel();
        self.relay.stopped().await;
        tracing::info!("gateway stopped");
    }
}
