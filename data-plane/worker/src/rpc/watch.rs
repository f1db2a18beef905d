//! Load reports: at once, at every change of weight, and at least each second.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use weir_schemas::rpc::worker::{LoadReport, VersionLoad, VersionState as WireState};

use super::{Replies, WorkerService};
use crate::versions::{LoadedVersion, VersionState};

/// Longest silence: a gateway takes older reports for stale.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest gap between two reports: steps take a few milliseconds, and routing needs no finer picture.
const REPORT_GAP: Duration = Duration::from_millis(50);

pub(super) fn start(service: WorkerService, gateway: String) -> Replies<LoadReport> {
    let state = (service, gateway, None::<LoadReport>);
    stream::unfold(state, |(service, gateway, last)| async move {
        if let Some(last) = &last {
            wait_for_news(&service, &gateway, last).await;
        }
        let report = report(&service, &gateway);
        Some((Ok(report.clone()), (service, gateway, Some(report))))
    })
    .boxed()
}

async fn wait_for_news(service: &WorkerService, gateway: &str, last: &LoadReport) {
    let deadline = tokio::time::Instant::now() + REPORT_INTERVAL;
    let mut changes = service.versions.changes();
    loop {
        tokio::time::sleep(REPORT_GAP).await;
        if tokio::time::Instant::now() >= deadline || report(service, gateway) != *last {
            return;
        }
        // A version's state is worth an early look; the load is looked at every gap.
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(REPORT_GAP) => {}
        }
    }
}

fn report(service: &WorkerService, gateway: &str) -> LoadReport {
    // Read before the loads, so that what it names is in them.
    let last_handle = service.sessions.last_included(gateway);
    let versions = service.versions.all().into_iter().map(|(id, state)| match state {
        VersionState::Ready(version) => VersionLoad { version_id: id.to_string(), ..ready(&version) },
        VersionState::Loading => VersionLoad {
            version_id: id.to_string(),
            state: WireState::Loading.into(),
            ..VersionLoad::default()
        },
        VersionState::Failed(reason, _) => VersionLoad {
            version_id: id.to_string(),
            state: WireState::Failed.into(),
            state_reason: reason,
            ..VersionLoad::default()
        },
    });
    LoadReport {
        worker_id: service.worker.to_string(),
        instance: service.instance.to_string(),
        draining: service.draining.is_cancelled(),
        last_handle,
        versions: versions.collect(),
    }
}

fn ready(version: &LoadedVersion) -> VersionLoad {
    let status = *version.engine.status.borrow();
    let (load, capacity) = (status.load, version.engine.capacity);
    let pool_tokens = u64::from(capacity.num_pages) * u64::from(capacity.block_tokens);
    VersionLoad {
        version_id: String::new(),
        state: WireState::Ready.into(),
        state_reason: String::new(),
        text_digest: version.text_digest.clone(),
        context_limit: capacity.context_limit,
        max_sequence_tokens: pool_tokens.min(capacity.context_limit.into()),
        running: load.running,
        running_batch: load.running_batch,
        waiting_interactive: load.waiting_interactive,
        waiting_batch: load.waiting_batch,
        seats: load.seats,
        pages: capacity.num_pages.into(),
        pages_free: load.free_blocks.into(),
        pages_cached: load.cached_blocks.into(),
        pages_referenced: load.referenced_blocks.into(),
        queued_prefill_tokens: load.queued_prefill_tokens,
        prefill_tokens_per_s: status.rates.prefill_tokens_per_s,
        decode_tokens_per_s: status.rates.decode_tokens_per_s,
        answer_tokens: status.rates.answer_tokens,
        device: version.device.name().to_owned(),
        // In whole percent, so that an idle device soon has no news.
        device_busy: (status.busy.share_at(Instant::now()) * 100.0).round() / 100.0,
    }
}
