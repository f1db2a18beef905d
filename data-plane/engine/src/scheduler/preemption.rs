//! Who gives way when pages or seats run out.
//!
//! A preempted sequence keeps its tokens and goes back to the queue by its arrival; its pages are recomputed
//! later, as far as they are not still in the prefix cache. So running out of pages never fails a generation.
//! Victims: batch before interactive (unless batch is owed its floor), then the most served tenant, then the
//! newest sequence.

use std::cmp::Ordering;

use super::slots::Slot;
use super::{Class, Scheduler};
use crate::sequence::Commit;

impl<C: Commit> Scheduler<C> {
    /// Frees a seat if one is missing, and at least `num_blocks` pages, for a waiting sequence, if those who must
    /// yield to it hold as much; else changes nothing. False as well if they will be free only when the submissions in
    /// flight are collected.
    pub(super) fn reclaim(&mut self, waiting: Slot, seat: bool, num_blocks: u32) -> bool {
        let is_leaving = |slot: &Slot| self.slots[*slot].is_yielding;
        let is_seat_returning = self.running.iter().any(is_leaving)
            || self.in_flight.iter().any(|submission| !submission.releases.is_empty());
        let seat = seat && !is_seat_returning;
        let num_blocks = num_blocks.saturating_sub(self.num_returning());
        let yielding = self.running.iter().filter(|slot| self.yields_to(**slot, waiting));
        let (victims, blocks) =
            yielding.fold((0, 0), |sum, &slot| (sum.0 + 1, sum.1 + self.holds_alone(slot)));
        if victims < usize::from(seat) || blocks < num_blocks {
            return false;
        }
        let (mut has_seat, mut freed_blocks, mut at_once) = (!seat, 0, seat || num_blocks > 0);
        while !has_seat || freed_blocks < num_blocks {
            let Some(victim) = self.victim(|running| self.yields_to(running, waiting)) else { return false };
            has_seat = true;
            freed_blocks += self.holds_alone(victim);
            at_once &= self.give_way(victim).is_some();
        }
        at_once
    }

    /// Pages that nobody else holds.
    fn holds_alone(&self, slot: Slot) -> u32 {
        let blocks = self.slots[slot].block_table.blocks().iter();
        let alone = blocks.filter(|block| self.kv.ref_count(**block) == 1).count();
        u32::try_from(alone).expect("at most as many as pages")
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
        if running.is_yielding || running.seated_at_step == self.step {
            return false;
        }
        match (running.class, waiting.class) {
            (Class::Batch, Class::Interactive) => self.floor.batch_yields(),
            (Class::Interactive, Class::Batch) => false,
            (Class::Interactive, Class::Interactive) | (Class::Batch, Class::Batch) => {
                self.step - running.seated_at_step >= u64::from(self.config.seat_quantum_steps)
                    && self.fair.counter(running.account) > self.fair.counter(waiting.account)
            }
        }
    }

    pub(super) fn victim(&self, eligible: impl Fn(Slot) -> bool) -> Option<Slot> {
        let candidates = self.running.iter().copied();
        let candidates = candidates.filter(|&slot| !self.slots[slot].is_yielding && eligible(slot));
        candidates.max_by(|&a, &b| self.compare_victims(a, b))
    }

    /// Greater goes first.
    fn compare_victims(&self, a: Slot, b: Slot) -> Ordering {
        let (a, b) = (&self.slots[a], &self.slots[b]);
        let is_batch = |class| class == Class::Batch && self.floor.batch_yields();
        let by_class = is_batch(a.class).cmp(&is_batch(b.class));
        let by_service = || self.fair.counter(a.account).total_cmp(&self.fair.counter(b.account));
        by_class.then_with(by_service).then_with(|| a.id.cmp(&b.id))
    }

    /// Takes a sequence's seat and pages, and returns where it was in the running order; or, if a submission in flight
    /// names it, sees to it that they are taken when the last of those is collected.
    pub(super) fn give_way(&mut self, slot: Slot) -> Option<usize> {
        let sequence = &mut self.slots[slot];
        if sequence.in_flight == 0 {
            return Some(self.preempt(slot));
        }
        sequence.is_yielding = true;
        sequence.planned_tokens = 0;
        None
    }

    pub(super) fn preempt(&mut self, slot: Slot) -> usize {
        let sequence = &mut self.slots[slot];
        assert!(sequence.in_flight == 0, "a page named by a submission is not given away");
        sequence.preemptions += 1;
        let (seat, block_table) = sequence.leave_seat().expect("it runs");
        self.running_batch -= u32::from(sequence.class == Class::Batch);
        self.free_seats.push(seat);
        self.kv.release(&block_table);
        self.counters.preemptions += 1;
        let index = self.running.iter().position(|&running| running == slot).expect("it runs");
        self.running.remove(index);
        self.behind.retain(|&behind| behind != slot);
        self.enqueue(slot);
        index
    }
}
