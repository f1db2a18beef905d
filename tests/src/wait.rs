//! Waiting for a condition, never for a time.

use std::future::Future;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine with two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Polls until `condition` gives a value; panics with `what` when patience runs out.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(POLL).await;
    }
}
