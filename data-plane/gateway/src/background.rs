//! What runs beside the requests: follow the config, warm model texts, write counted rejections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::ConfigSnapshot;

use crate::indexed_config::CurrentConfig;
use crate::metrics::Metrics;
use crate::model_texts::ModelTexts;
use crate::rejections::Rejections;
use crate::routing::{Link, Registry, num_waiting};

/// How often minutes that are over are looked for: rejections reach the log this late at most.
const REJECTIONS_INTERVAL: Duration = Duration::from_secs(5);
/// As often as workers tell of their load.
const QUEUES_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tries to get a model text that could not be had.
const WARM_RETRY: Duration = Duration::from_secs(5);

/// Puts each new snapshot in force.
pub(crate) async fn follow_config(
    mut snapshots: watch::Receiver<Arc<ConfigSnapshot>>,
    current: Arc<CurrentConfig>,
    registry: Arc<Registry>,
    texts: Arc<ModelTexts>,
    cancel: CancellationToken,
) {
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        tracing::info!(revision = %snapshot.revision, "config in force");
        current.replace(snapshot);
        let config = current.load();
        registry.reconcile(&config);
        texts.retain(config.versions());
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = snapshots.changed() => if changed.is_err() { return },
        }
    }
}

/// Fetches and builds the text of every version as soon as a worker has it, so that no request waits for that.
pub(crate) async fn warm_texts(
    current: Arc<CurrentConfig>,
    registry: Arc<Registry>,
    texts: Arc<ModelTexts>,
    cancel: CancellationToken,
) {
    let mut changes = registry.ready_changes();
    loop {
        changes.mark_unchanged();
        let config = current.load();
        let mut failed = false;
        for version in config.versions() {
            if texts.get_built(version).is_some() {
                continue;
            }
            let ready = registry.ready(&config, version.id);
            if ready.is_empty() {
                continue;
            }
            let links: Vec<Arc<Link>> = ready.into_iter().map(|(link, _)| link).collect();
            match texts.get(version, &links).await {
                Ok(_) => tracing::info!(version = %version.id, model = version.model, "model text ready"),
                Err(error) => {
                    failed = true;
                    tracing::error!(version = %version.id, error = &error as &dyn std::error::Error, "no model text; trying again");
                }
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(WARM_RETRY), if failed => {}
        }
    }
}

/// Tells how many sequences wait for each model, until cancelled.
pub(crate) async fn watch_queues(
    current: Arc<CurrentConfig>,
    registry: Arc<Registry>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    while cancel.run_until_cancelled(tokio::time::sleep(QUEUES_INTERVAL)).await.is_some() {
        let config = current.load();
        for alias in config.aliases() {
            let loads = registry.ready_loads(&config, alias);
            metrics.queue_depth(&alias.name, loads.iter().map(num_waiting).sum());
        }
    }
}

/// Writes the minutes that are over, until cancelled.
pub(crate) async fn write_rejections(rejections: Arc<Rejections>, clock: Clock, cancel: CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(REJECTIONS_INTERVAL) => rejections.flush(clock.now(), false),
        }
    }
}
