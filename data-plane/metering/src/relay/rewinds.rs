//! When what a transport has acknowledged has to be sent again: the ledger says that the transport lost records, or
//! it has stood still for too long before the last record sent.

use std::time::{Duration, Instant};

/// How far the ledger is, in its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Every sequence of this sender up to and including this one is in the ledger.
    pub(super) watermark: u64,
    /// Moves when the broker lost what it had acknowledged.
    pub(super) generation: u64,
}

/// What to do about records that the ledger lacks: send what the log has above the watermark again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rewind {
    /// What the log has deleted nobody has: the ledger is to be told, so that its watermark can pass.
    pub(super) rest_is_lost: bool,
}

/// Decides; pure but for the times that it is given. Sending again is always harmless, never to do so when it is
/// needed is not.
#[derive(Debug)]
pub(super) struct Rewinds {
    /// Before a watermark that stands still is first taken for a loss.
    patience: Duration,
    /// From the second time on; doubled up to `patience_max`.
    patience_min: Duration,
    /// Once it has stood still for this long, too, what the log has deleted is given up. Not before: a ledger restored
    /// from a backup reads it from the broker, if only slowly, and a report of a loss cannot be taken back.
    patience_max: Duration,
    generation: Option<u64>,
    behind: Option<Behind>,
}

/// The ledger lacks something that was sent.
#[derive(Debug, Clone, Copy)]
struct Behind {
    watermark: u64,
    since: Instant,
    patience: Duration,
}

impl Rewinds {
    /// For a transport whose answer covers what it was just given, and that nobody else reads: at once, and rarely
    /// again for the same watermark.
    pub(super) fn at_once(patience_min: Duration, patience_max: Duration) -> Self {
        Self { patience: Duration::ZERO, patience_min, patience_max, generation: None, behind: None }
    }

    /// For a transport that the ledger reads at its own pace.
    pub(super) fn patient(patience_min: Duration, patience_max: Duration) -> Self {
        Self { patience: patience_min, ..Self::at_once(patience_min, patience_max) }
    }

    /// Whether everything above the watermark is to be sent again. `sent` is the last sequence that the transport has
    /// acknowledged since the last rewind.
    pub(super) fn due(&mut self, standing: Standing, sent: u64, now: Instant) -> Option<Rewind> {
        // What was sent before the first answer may have been lost before it, too.
        let changed = self.generation.replace(standing.generation) != Some(standing.generation);
        let Standing { watermark, .. } = standing;
        if watermark >= sent {
            self.behind = None;
            return None;
        }
        let behind = match self.behind {
            Some(behind) if behind.watermark == watermark => behind,
            Some(_) | None => Behind { watermark, since: now, patience: self.patience },
        };
        let stood_still = now.duration_since(behind.since) >= behind.patience;
        if !stood_still && !changed {
            self.behind = Some(behind);
            return None;
        }
        let patience = (behind.patience * 2).clamp(self.patience_min, self.patience_max);
        self.behind = Some(Behind { watermark, since: now, patience });
        let longest = behind.patience.is_zero() || behind.patience >= self.patience_max;
        Some(Rewind { rest_is_lost: stood_still && longest })
    }

    /// The ledger could not have moved: its patience begins anew.
    pub(super) fn restart_clock(&mut self, now: Instant) {
        if let Some(behind) = &mut self.behind {
            behind.since = now;
        }
    }
}

#[cfg(test)]
mod tests;
