//! How long a request waits: to be begun, and to be over.

use weir_schemas::rpc::worker::Finished;

use super::Running;

/// How long a request waits to be begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Until(tokio::time::Instant),
    /// The worker was asked to drop it if it still waits.
    Over,
    /// It has been begun.
    Rewarded,
}

/// What ended a wait.
pub(super) enum Waited {
    News,
    /// It has waited as long as it may, and nothing has come.
    LongEnough,
    /// The request may go on no longer.
    Deadline,
}

impl Running {
    /// The worker dropped it for having waited too long: nothing of it was computed.
    pub(super) fn was_given_up(&self, finished: &Finished) -> bool {
        let computed = finished.cached_prompt_tokens + finished.computed_prompt_tokens;
        self.patience == Patience::Over
            && computed + finished.generated_tokens == 0
            && !self.attempt.has_tokens()
    }

    pub(super) async fn wait(&mut self) -> Waited {
        if self.patience != Patience::Rewarded && self.attempt.has_tokens() {
            self.patience = Patience::Rewarded;
        }
        let (until, waited) = match self.patience {
            Patience::Until(end) if end < self.deadline => (end, Waited::LongEnough),
            _ => (self.deadline, Waited::Deadline),
        };
        match tokio::time::timeout_at(until, self.attempt.changed.notified()).await {
            Ok(()) => Waited::News,
            Err(_) => waited,
        }
    }
}
