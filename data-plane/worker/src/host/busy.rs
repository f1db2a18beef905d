//! How much of the time the device has something to do.

use std::time::{Duration, Instant};

use super::step_clock::StepTime;

/// What lies this far back counts for a third of what is now.
const MEMORY: Duration = Duration::from_secs(10);

/// Share of the time that steps had the device, forgetting exponentially.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Busy {
    share: f64,
    /// Until when it is counted.
    at: Instant,
}

impl Busy {
    pub(super) fn new(now: Instant) -> Self {
        Self { share: 0.0, at: now }
    }

    /// Takes in a step, which ends after every earlier one.
    pub(super) fn observe(&mut self, step: StepTime) {
        self.share = self.share_at(step.started);
        self.at = self.at.max(step.started);
        let forgotten = forgotten_between(self.at, step.ended);
        self.share += (1.0 - self.share) * forgotten;
        self.at = step.ended;
    }

    /// The share at a moment, 0 to 1. Since the last step there was none.
    pub(crate) fn share_at(&self, now: Instant) -> f64 {
        self.share * (1.0 - forgotten_between(self.at, now))
    }
}

fn forgotten_between(from: Instant, to: Instant) -> f64 {
    let between = to.saturating_duration_since(from);
    -(-between.as_secs_f64() / MEMORY.as_secs_f64()).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_without_a_pause_fill_it_and_pauses_empty_it() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut busy = Busy::new(start);
        assert_eq!(busy.share_at(at(1000)), 0.0);
        for step in 0..1000 {
            busy.observe(StepTime { started: at(100 * step), ended: at(100 * step + 100) });
        }
        assert!(busy.share_at(at(100_000)) > 0.9999);
        let after_the_memory = busy.share_at(at(110_000));
        assert!((after_the_memory - (-1f64).exp()).abs() < 1e-3, "{after_the_memory}");
        for step in 1100..3000 {
            busy.observe(StepTime { started: at(100 * step), ended: at(100 * step + 25) });
        }
        let quarter = busy.share_at(at(300_000));
        assert!((quarter - 0.25).abs() < 0.01, "{quarter}");
    }
}
