//! When to publish: at once after this process commits, within a poll after another control plane does, and when a
//! published key expires. While Postgres is away, what was published stays.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use weir_schemas::clock::Clock;

use super::Published;
use crate::metrics::Metrics;
use crate::scope::PlatformScope;
use crate::store::config::TokenIdentity;
use crate::store::{Store, StoreError};

/// How soon another control plane's commit is noticed: well under the second within which a revocation must hold,
/// at the cost of one small query.
const POLL: Duration = Duration::from_millis(300);

/// Longer than any statement may take: a connection that answers nothing any more is given up.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(15);

/// Publishes until dropped. The first state is published before anything else happens.
pub(crate) async fn follow(
    store: Store,
    identity: TokenIdentity,
    clock: Clock,
    metrics: Metrics,
    published: watch::Sender<Arc<Published>>,
) {
    let mut committed = store.committed();
    let mut is_away = false;
    loop {
        let refreshing =
            tokio::time::timeout(REFRESH_TIMEOUT, refresh(&store, &identity, &clock, &published));
        let refreshed = tokio::select! {
            refreshed = refreshing => refreshed,
            // Someone has written: the database is back, whatever this refresh still waits for.
            _ = committed.changed(), if is_away => continue,
        };
        match refreshed.unwrap_or(Err(StoreError::Unavailable(sqlx::Error::PoolTimedOut))) {
            Ok(changed) => {
                if changed {
                    let revision = published.borrow().revision;
                    metrics.config_epoch.set(i64::try_from(revision.epoch).unwrap_or(i64::MAX));
                    metrics.config_position.set(i64::try_from(revision.position).unwrap_or(i64::MAX));
                    tracing::info!(%revision, "config published");
                }
                if std::mem::take(&mut is_away) {
                    tracing::info!("config follows the log again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_away, true) {
                    tracing::warn!(%error, "config cannot follow the log; what was published stays");
                }
            }
        }
        tokio::select! {
            // The sender lives in `store`, which lives here: it cannot end.
            _ = committed.changed() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

async fn refresh(
    store: &Store,
    identity: &TokenIdentity,
    clock: &Clock,
    published: &watch::Sender<Arc<Published>>,
) -> Result<bool, StoreError> {
    let scope = PlatformScope::proven();
    let now = clock.now();
    let current = published.borrow().clone();
    let expired = current.next_expiry.is_some_and(|expiry| expiry <= now);
    if !expired && !current.sets.is_empty() && store.revision(scope).await? == current.revision {
        return Ok(false);
    }
    let (snapshot, in_service) = store.config_snapshot(scope, identity, now).await?;
    published.send_replace(Arc::new(current.next(&snapshot, in_service)));
    Ok(true)
}
