//! What an admitted request holds. Ended exactly once: settled with the real count, or, dropped without that,
//! abandoned as if it had never been.

use std::sync::Arc;
use std::time::Duration;

use weir_schemas::ids::VersionId;

use super::account::{Account, Hold, Used};
use super::{Admission, LimitScope};
use crate::authenticate::Principal;

/// A drop guard over the holds on each account; one a request, however many attempts.
#[derive(Debug)]
pub(crate) struct Reservation {
    admission: Arc<Admission>,
    of: ReservedFor,
    holds: [Hold; LimitScope::ALL.len()],
    settled: bool,
}

/// Whose accounts are held.
#[derive(Debug, Clone)]
pub(super) struct ReservedFor {
    pub(super) principal: Principal,
    /// As the client named it.
    pub(super) model: Arc<str>,
    pub(super) version: VersionId,
}

impl Reservation {
    pub(super) fn new(
        admission: Arc<Admission>,
        of: ReservedFor,
        holds: [Hold; LimitScope::ALL.len()],
    ) -> Self {
        Self { admission, of, holds, settled: false }
    }

    /// Ends the reservation: the request used these many prompt and generated tokens. `complete` answers teach what
    /// to expect of the next.
    pub(crate) fn settle(mut self, prompt_tokens: u64, generated_tokens: u64, complete: bool) {
        self.settled = true;
        self.end(|account, hold, now| account.settle(hold, Used { prompt_tokens, generated_tokens }, now));
        if complete {
            let choices = self.holds[0].sequences.max(1);
            let mut accounts = self.admission.accounts.lock();
            let expected = accounts.expected(&self.of);
            (0..choices).for_each(|_| expected.record(generated_tokens / choices));
        }
    }

    fn end(&self, each: impl Fn(&mut Account, &Hold, Duration)) {
        let mut accounts = self.admission.accounts.lock();
        let now = self.admission.stopwatch.elapsed();
        for (account, hold) in accounts.of(&self.of).into_iter().zip(&self.holds) {
            each(account, hold, now);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.settled {
            self.end(|account, hold, now| account.abandon(hold, now));
        }
    }
}
