//! Interactive goes before batch, and batch is guaranteed a share of service.

use crate::sequence::Class;

/// Batch is owed as soon as its credit reaches this many tokens of service, and from then on keeps its seats
/// until it has had them: long enough turns that little is lost to recomputing.
const OWED_TOKENS: f64 = 256.0;
/// Credit stops growing here, so that batch cannot take over the machine after a long shortage.
const CREDIT_MAX_TOKENS: f64 = 1024.0;

/// While batch lacks service, each token for interactive earns it a fraction of one.
#[derive(Debug)]
pub(super) struct ClassFloor {
    /// Batch tokens earned by one interactive token: floor / (1 − floor).
    earned_each: f64,
    credit: f64,
}

impl ClassFloor {
    pub(super) fn new(floor_permille: u32) -> Self {
        let floor = f64::from(floor_permille) / 1000.0;
        Self { earned_each: floor / (1.0 - floor), credit: 0.0 }
    }

    /// Counts a step's service. `batch_lacks` says that a batch sequence wanted to run and did not.
    pub(super) fn serve(&mut self, interactive_cost: f64, batch_cost: f64, batch_lacks: bool) {
        if batch_lacks {
            self.credit += interactive_cost * self.earned_each;
        }
        self.credit = (self.credit - batch_cost).clamp(0.0, CREDIT_MAX_TOKENS);
    }

    /// True if batch has had its floor: then it gives its seats and pages to interactive.
    pub(super) fn batch_yields(&self) -> bool {
        self.credit <= 0.0
    }

    /// True if batch has had less than its floor: then it goes first.
    fn owes_batch(&self) -> bool {
        self.credit >= OWED_TOKENS
    }

    /// Who may use the step's prefill budget and free seats first.
    pub(super) fn order(&self) -> [Class; 2] {
        if self.owes_batch() {
            [Class::Batch, Class::Interactive]
        } else {
            [Class::Interactive, Class::Batch]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_gets_its_floor_over_time() {
        let mut floor = ClassFloor::new(100);
        let (mut interactive, mut batch) = (0.0, 0.0);
        for _ in 0..10_000 {
            let served = if floor.order()[0] == Class::Batch { (0.0, 64.0) } else { (64.0, 0.0) };
            floor.serve(served.0, served.1, served.1 == 0.0);
            interactive += served.0;
            batch += served.1;
        }
        let share: f64 = batch / (batch + interactive);
        assert!((share - 0.1).abs() < 0.005, "{share}");
    }

    #[test]
    fn nothing_is_earned_without_need() {
        let mut floor = ClassFloor::new(500);
        floor.serve(1e6, 0.0, false);
        assert!(!floor.owes_batch());
        floor.serve(1e6, 0.0, true);
        assert!(floor.owes_batch());
        floor.serve(0.0, CREDIT_MAX_TOKENS - 1.0, false);
        assert!(!floor.owes_batch() && !floor.batch_yields());
        floor.serve(0.0, 1.0, false);
        assert!(floor.batch_yields(), "credit is capped");
    }
}
