//! Keeps the loaded versions equal to what the deployments of this worker's pool name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_schemas::config_snapshot::{ConfigSnapshot, PinnedVersion};
use weir_schemas::ids::VersionId;

use crate::load::Loader;
use crate::versions::{VersionState, Versions};

/// A version that failed to load is tried again this often: its file may have arrived since.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);

/// Follows the config until cancelled. Versions load one at a time, since a load keeps every core busy.
pub(crate) async fn run(
    pool: String,
    loader: Arc<Loader>,
    versions: Arc<Versions>,
    mut snapshots: watch::Receiver<Arc<ConfigSnapshot>>,
    cancel: CancellationToken,
) {
    loop {
        let wanted = wanted(&snapshots.borrow_and_update(), &pool);
        for (id, _) in versions.all() {
            if !wanted.contains_key(&id) {
                tracing::info!(version = %id, "no deployment of this pool names it any more; unloading");
                versions.remove(id);
            }
        }
        let next = wanted.into_values().find(|pinned| is_due(&versions, pinned));
        if let Some(pinned) = next {
            // A load cannot be interrupted; a stop waits for it.
            load(&loader, &versions, pinned).await;
            if cancel.is_cancelled() {
                return;
            }
            continue;
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = snapshots.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
    }
}

fn wanted(snapshot: &ConfigSnapshot, pool: &str) -> HashMap<VersionId, PinnedVersion> {
    let resources = &snapshot.resources;
    let named = resources.deployments.iter().filter(|deployment| deployment.pool == pool);
    let pinned = |id: VersionId| resources.versions.iter().find(|version| version.id == id);
    named
        .filter_map(|deployment| pinned(deployment.version))
        .map(|pinned| (pinned.id, pinned.clone()))
        .collect()
}

fn is_due(versions: &Versions, wanted: &PinnedVersion) -> bool {
    match versions.pinned(wanted.id) {
        None => true,
        Some((_, VersionState::Loading | VersionState::Ready(_))) => false,
        Some((tried, VersionState::Failed(_, at))) => tried != *wanted || at.elapsed() >= RETRY_INTERVAL,
    }
}

async fn load(loader: &Arc<Loader>, versions: &Versions, pinned: PinnedVersion) {
    let first_try = versions.pinned(pinned.id).is_none();
    if first_try {
        versions.set(pinned.clone(), VersionState::Loading);
    }
    tracing::info!(version = %pinned.id, model = pinned.model, "loading");
    let started = Instant::now();
    let (task_loader, task_pinned) = (loader.clone(), pinned.clone());
    let outcome = tokio::task::spawn_blocking(move || task_loader.load(&task_pinned)).await;
    let reason = match outcome {
        Ok(Ok(version)) => {
            tracing::info!(version = %pinned.id, load_ms = started.elapsed().as_millis(), "ready");
            versions.set(pinned, VersionState::Ready(Arc::new(version)));
            return;
        }
        Ok(Err(error)) => error.chain(),
        Err(_) => "the load panicked; see the log".to_owned(),
    };
    tracing::error!(version = %pinned.id, reason, "the version did not load");
    versions.set(pinned, VersionState::Failed(reason, Instant::now()));
}
