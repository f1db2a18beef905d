//! How a step's prefill budget is shared among those who are more than one token behind.
//!
//! Three wishes pull apart: the earliest admitted should finish, a short prompt should not wait for a long one, and
//! nobody should hold pages for nothing. So in each step the earliest gets a chunk, and so does everyone whom one
//! chunk completes; then one newcomer gets its first chunk; then the earliest get what is left; and only if they are
//! all complete, more newcomers.

use super::admission::AdmissionRound;
use super::budget::PrefillBudget;
use super::slots::Slot;
use super::{Class, Scheduler};
use crate::sequence::Commit;

impl<C: Commit> Scheduler<C> {
    pub(super) fn plan_prefills(
        &mut self,
        class: Class,
        budget: &mut PrefillBudget,
        round: &mut AdmissionRound,
    ) {
        self.plan_first_chunks(class, budget);
        let newcomers = self.admit(class, 1, budget, round);
        self.plan_further_chunks(class, budget);
        // Only a newcomer that got all of its prompt makes room for the next one.
        while newcomers > 0 && !budget.is_spent() && self.admit(class, 1, budget, round) > 0 {
            self.plan_further_chunks(class, budget);
        }
    }

    /// A chunk for the earliest admitted, and for everyone whom it completes.
    fn plan_first_chunks(&mut self, class: Class, budget: &mut PrefillBudget) {
        let mut is_earliest = true;
        for index in 0..self.behind.len() {
            if budget.is_spent() {
                return;
            }
            let slot = self.behind[index];
            let sequence = &self.slots[slot];
            if sequence.class != class || sequence.planned_tokens >= sequence.remaining() {
                continue;
            }
            if is_earliest || sequence.remaining() <= self.config.chunk_tokens {
                self.plan_chunk(slot, budget);
            }
            is_earliest = false;
        }
    }

    /// What is left goes to the earliest admitted, as many chunks as it needs, then to the next.
    fn plan_further_chunks(&mut self, class: Class, budget: &mut PrefillBudget) {
        for index in 0..self.behind.len() {
            if budget.is_spent() {
                return;
            }
            let slot = self.behind[index];
            if self.slots[slot].class == class {
                while self.plan_chunk(slot, budget) {}
            }
        }
    }

    /// One more chunk for a sequence. False if it needs none or the budget has none for it.
    fn plan_chunk(&mut self, slot: Slot, budget: &mut PrefillBudget) -> bool {
        let sequence = &mut self.slots[slot];
        let start = sequence.num_submitted_tokens + sequence.planned_tokens;
        let end = sequence.num_submitted_tokens + sequence.remaining();
        if start >= end {
            return false;
        }
        let num_tokens = budget.take_chunk(start, end);
        sequence.planned_tokens += num_tokens;
        num_tokens > 0
    }
}
