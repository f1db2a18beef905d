//! Who gives way when pages or seats run out.
//!
//! A preempted sequence keeps its tokens and goes back to the queue by its arrival; its pages are recomputed
//! later, as far as they are not still in the prefix cache. So running out of pages never fails a generation.
//! Victims: batch before interactive (unless batch is owed its floor), then the most served tenant, then the
//! newest sequence.

use std::cmp::Ordering;

use super::slots::Slot;
use super::{Class, Scheduler};
use crate::step::PageCopy;

impl Scheduler {
    /// Sees to it that each sequence which is one token behind has a page of its own for that token. Ends: each
    /// preemption leaves fewer running, and one alone always fits, as `add` refuses what never could.
    pub(super) fn make_room_for_decodes(&mut self, copies: &mut Vec<PageCopy>) {
        let mut index = 0;
        while index < self.running.len() {
            let slot = self.running[index];
            let sequence = &mut self.slots[slot];
            let written_block = sequence.num_computed_tokens / self.block_tokens;
            let is_ready = !sequence.is_decoding()
                || self
                    .kv
                    .prepare_write(&mut sequence.block_table, written_block + 1, written_block, copies)
                    .is_ok();
            if is_ready {
                index += 1;
                continue;
            }
            let victim = self.victim(|_| true).expect("at least the one that asks is running");
            let victim_index = self.preempt(victim);
            if victim_index < index {
                index -= 1;
            }
        }
    }

    /// Frees a seat if one is missing, and at least `num_blocks` pages, for a waiting sequence, if those who must
    /// yield to it hold as much; else changes nothing.
    pub(super) fn reclaim(&mut self, waiting: Slot, seat: bool, num_blocks: u32) -> bool {
        let holds_alone = |slot: Slot| {
            let blocks = self.slots[slot].block_table.blocks().iter();
            blocks.filter(|block| self.kv.ref_count(**block) == 1).count()
        };
        let yielding = self.running.iter().filter(|slot| self.yields_to(**slot, waiting));
        let (victims, blocks) = yielding.fold((0, 0), |sum, &slot| (sum.0 + 1, sum.1 + holds_alone(slot)));
        if victims < usize::from(seat) || blocks < num_blocks as usize {
            return false;
        }
        let seats_goal = self.running.len() - usize::from(seat);
        let blocks_goal = self.kv.num_available() + num_blocks;
        while self.running.len() > seats_goal || self.kv.num_available() < blocks_goal {
            let Some(victim) = self.victim(|running| self.yields_to(running, waiting)) else { return false };
            self.preempt(victim);
        }
        true
    }

    /// Cheap to ask in each step: whether a waiting sequence of this class may find someone who yields a seat.
    pub(super) fn someone_may_yield_to(&self, class: Class) -> bool {
        let retries = self.step.is_multiple_of(super::admission::RETRY_STEPS);
        let is_batch = |slot: &Slot| self.slots[*slot].class == Class::Batch;
        retries
            || (class == Class::Interactive && self.floor.batch_yields() && self.running.iter().any(is_batch))
    }

    /// Batch yields to interactive, as long as batch has had its floor. Within a class, who has held a seat for
    /// the stated number of steps yields to a tenant that has been served less.
    fn yields_to(&self, running: Slot, waiting: Slot) -> bool {
        let (running, waiting) = (&self.slots[running], &self.slots[waiting]);
        if running.in_flight || running.seated_at_step == self.step {
            return false;
        }
        match (running.class, waiting.class) {
            (Class::Batch, Class::Interactive) => self.floor.batch_yields(),
            (Class::Interactive, Class::Batch) => false,
            (Class::Interactive, Class::Interactive) | (Class::Batch, Class::Batch) => {
                self.step - running.seated_at_step >= u64::from(self.config.seat_quantum_steps)
                    && self.fair.counter(running.tenant) > self.fair.counter(waiting.tenant)
            }
        }
    }

    fn victim(&self, eligible: impl Fn(Slot) -> bool) -> Option<Slot> {
        let candidates = self.running.iter().copied().filter(|&slot| eligible(slot));
        candidates.max_by(|&a, &b| self.compare_victims(a, b))
    }

    /// Greater goes first.
    fn compare_victims(&self, a: Slot, b: Slot) -> Ordering {
        let (a, b) = (&self.slots[a], &self.slots[b]);
        let is_batch = |class| class == Class::Batch && self.floor.batch_yields();
        let by_class = is_batch(a.class).cmp(&is_batch(b.class));
        let by_service = || self.fair.counter(a.tenant).total_cmp(&self.fair.counter(b.tenant));
        by_class.then_with(by_service).then_with(|| a.id.cmp(&b.id))
    }

    /// Takes a sequence's seat and pages; returns where it was in the running order.
    fn preempt(&mut self, slot: Slot) -> usize {
        let sequence = &mut self.slots[slot];
        assert!(!sequence.in_flight, "a page named by a submission is not given away");
        sequence.preemptions += 1;
        let block_table = sequence.leave_seat();
        self.kv.release(&block_table);
        self.counters.preemptions += 1;
        let index = self.running.iter().position(|&running| running == slot).expect("it runs");
        self.running.remove(index);
        self.enqueue(slot);
        index
    }
}
