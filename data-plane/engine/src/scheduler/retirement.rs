//! Where a sequence ends: its pages go back, its tenant leaves, its last event is made.

use super::Scheduler;
use super::fair_share::INPUT_WEIGHT;
use super::slots::Slot;
use crate::sequence::{FinishReason, SequenceEvent};

impl Scheduler {
    /// Ends a sequence in whatever state it is. The seat and the pages that submissions in flight name stay with them.
    pub(super) fn retire(&mut self, slot: Slot, reason: FinishReason, events: &mut Vec<SequenceEvent>) {
        let mut sequence = self.slots.remove(slot);
        if let Some((seat, block_table)) = sequence.leave_seat() {
            self.discard_rows(slot, seat, block_table);
            let index = self.running.iter().position(|&running| running == slot).expect("it runs");
            self.running.remove(index);
        } else {
            self.waiting.remove(sequence.class, sequence.tenant, sequence.id);
        }
        if sequence.was_admitted {
            let uncomputed = sequence.prompt_tokens - sequence.prompt_progress();
            self.fair.charge(sequence.tenant, -INPUT_WEIGHT * f64::from(uncomputed));
        }
        self.fair.leave(sequence.tenant);
        self.admission_worthwhile = true;
        let counter = match reason {
            FinishReason::Stop => &mut self.counters.finished_stop,
            FinishReason::Length => &mut self.counters.finished_length,
            FinishReason::Cancelled => &mut self.counters.finished_cancelled,
            FinishReason::Error => &mut self.counters.finished_error,
        };
        *counter += 1;
        events.push(SequenceEvent::Finished { id: sequence.id, reason, usage: sequence.usage() });
    }
}
