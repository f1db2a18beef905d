//! Where a sequence ends: its pages go back, its tenant leaves, its last event is made.

use super::Scheduler;
use super::fair_share::INPUT_WEIGHT;
use super::slots::Slot;
use crate::sequence::{Class, Commit, FinishReason, Sink};

impl<C: Commit> Scheduler<C> {
    /// Ends a sequence in whatever state it is. The seat and the pages that submissions in flight name stay with them.
    pub(super) fn retire(&mut self, slot: Slot, reason: FinishReason, sink: &mut impl Sink<C>) {
        let mut sequence = self.slots.remove(slot);
        if let Some((seat, block_table)) = sequence.leave_seat() {
            self.running_batch -= u32::from(sequence.class == Class::Batch);
            self.discard_rows(slot, seat, block_table);
            let index = self.running.iter().position(|&running| running == slot).expect("it runs");
            self.running.remove(index);
            self.behind.retain(|&behind| behind != slot);
        } else {
            self.waiting.remove(sequence.class, sequence.account, sequence.id);
        }
        if sequence.was_admitted {
            let uncomputed = sequence.prompt_tokens - sequence.prompt_progress();
            self.fair.charge(sequence.account, -INPUT_WEIGHT * f64::from(uncomputed));
        }
        self.fair.leave(sequence.account);
        self.admission_worthwhile = true;
        let counter = match reason {
            FinishReason::Stop => &mut self.counters.finished_stop,
            FinishReason::Length => &mut self.counters.finished_length,
            FinishReason::Cancelled => &mut self.counters.finished_cancelled,
            FinishReason::Error => &mut self.counters.finished_error,
        };
        *counter += 1;
        let usage = sequence.usage();
        sink.finished(sequence.id, sequence.commit, reason, usage);
    }
}
