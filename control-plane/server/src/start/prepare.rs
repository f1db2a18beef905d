//! The first thing a control plane needs: its database, there and with this program's schema. It waits for that as
//! long as it takes, answering 503 meanwhile, so that the order in which an installation's parts start is no matter.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use weir_schemas::clock::Clock;

use crate::auth::Signer;
use crate::bootstrap::{self, BootstrapError};
use crate::store::Store;

/// First and longest wait between two tries. A database that is back is noticed within the longest.
const RETRY_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// What comes of it: the first operator's token where one was made.
pub(super) type Outcome = Result<Option<String>, BootstrapError>;

/// Prepares the database.
pub(super) struct Preparation {
    pub(super) store: Store,
    pub(super) signer: Signer,
    pub(super) clock: Clock,
    /// Told once it is done.
    pub(super) prepared: watch::Sender<bool>,
    pub(super) outcome: oneshot::Sender<Outcome>,
}

impl Preparation {
    /// Runs until it is done; false if it cannot be done (then everything is cancelled) or was cancelled.
    pub(super) async fn run(self, cancel: CancellationToken) -> bool {
        let Self { store, signer, clock, prepared, outcome } = self;
        let preparing = retry(&store, &signer, &clock);
        let Some(done) = cancel.run_until_cancelled(preparing).await else { return false };
        let good = done.is_ok();
        if good {
            prepared.send_replace(true);
            tracing::info!("the control plane's database is ready");
        } else {
            cancel.cancel();
        }
        // Whoever started the control plane may not care.
        drop(outcome.send(done));
        good
    }
}

async fn retry(store: &Store, signer: &Signer, clock: &Clock) -> Outcome {
    let (mut wait, longest) = RETRY_WAIT;
    let mut failures = 0u64;
    loop {
        match bootstrap::prepare(store, signer, clock).await {
            Err(error) if error.is_outage() => {
                failures += 1;
                if failures.is_power_of_two() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        failures,
                        "the control plane waits for its database; it answers 503"
                    );
                }
            }
            outcome => return outcome,
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
    }
}
