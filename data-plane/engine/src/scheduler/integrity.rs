//! Every invariant of the scheduler, verified at once. For tests after each step, and for debugging.

use std::collections::HashSet;

use super::{Class, Scheduler};
use crate::kv_cache::BlockId;
use crate::sequence::{Commit, Sequence};
use crate::step::Sample;

impl<C: Commit> Scheduler<C> {
    /// # Errors
    /// A text that names the broken invariant.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let held = || self.in_flight.iter().flat_map(|submission| &submission.releases);
        let tables = self.slots.iter().map(|sequence| &sequence.block_table);
        self.kv.check_integrity(tables.chain(held().map(|(_, block_table)| block_table)))?;
        let seated = self.slots.iter().filter(|sequence| sequence.has_seat()).count();
        let distinct: HashSet<_> = self.running.iter().collect();
        if seated != self.running.len() || distinct.len() != seated {
            return Err(format!("{} running, {seated} hold pages", self.running.len()));
        }
        let taken = self.slots.iter().filter_map(|sequence| sequence.seat);
        let seats: HashSet<_> =
            taken.chain(held().map(|(seat, _)| *seat)).chain(self.free_seats.iter().copied()).collect();
        let num_seats = seated + held().count() + self.free_seats.len();
        if seats.len() != num_seats || num_seats != self.config.seats as usize {
            return Err(format!("{num_seats} seats are held or free, {} of them distinct", seats.len()));
        }
        if self.running.len() > self.config.seats as usize {
            return Err(format!("{} running on {} seats", self.running.len(), self.config.seats));
        }
        let of_batch = |&&slot: &&usize| self.slots[slot].class == Class::Batch;
        if self.running.iter().filter(of_batch).count() != self.running_batch as usize {
            return Err(format!("{} of class batch do not run", self.running_batch));
        }
        for class in [Class::Interactive, Class::Batch] {
            let in_class = self.slots.iter().filter(|sequence| sequence.class == class);
            let unseated = in_class.filter(|sequence| !sequence.has_seat()).count();
            if unseated != self.waiting.len(class) as usize {
                return Err(format!("{unseated} without pages, {} wait", self.waiting.len(class)));
            }
        }
        for sequence in self.slots.iter() {
            let id = sequence.id;
            if sequence.num_computed_tokens >= sequence.len() {
                return Err(format!("{id:?} has nothing left to compute and is not over"));
            }
            if sequence.planned_tokens > 0 {
                return Err(format!("{id:?} is planned and not submitted"));
            }
            let writable = sequence.block_table.len() as u64 * u64::from(self.block_tokens);
            if writable < u64::from(sequence.num_submitted_tokens) {
                return Err(format!("{id:?} has more submitted tokens than room in its pages"));
            }
            if sequence.published_blocks * self.block_tokens > sequence.num_computed_tokens {
                return Err(format!("{id:?} has published a block that is not computed"));
            }
            self.check_rows_of(sequence)?;
        }
        if self.fair.num_active() != self.slots.iter().count() {
            return Err(format!("tenants count {} sequences", self.fair.num_active()));
        }
        self.check_writes_in_flight()
    }

    /// What a sequence believes to be in flight is what the submissions hold.
    fn check_rows_of(&self, sequence: &Sequence<C>) -> Result<(), String> {
        let id = sequence.id;
        let rows = self.in_flight.iter().flat_map(|submission| &submission.rows);
        let own: Vec<_> = rows.filter(|row| row.slot.is_some() && row.sequence == id).collect();
        let num_tokens: u32 = own.iter().map(|row| row.num_tokens).sum();
        let num_samples = own.iter().filter(|row| row.sample != Sample::No).count();
        if own.len() != sequence.in_flight as usize
            || num_samples != sequence.pending_samples as usize
            || sequence.num_submitted_tokens != sequence.num_computed_tokens + num_tokens
        {
            return Err(format!("{id:?} counts other rows in flight than there are"));
        }
        if sequence.is_yielding && own.is_empty() {
            return Err(format!("{id:?} gives way and waits for nothing"));
        }
        Ok(())
    }

    /// Each page that a submission in flight writes belongs to one sequence.
    fn check_writes_in_flight(&self) -> Result<(), String> {
        let mut written: HashSet<BlockId> = HashSet::new();
        for sequence in self.slots.iter().filter(|sequence| sequence.in_flight > 0) {
            let first = sequence.num_computed_tokens / self.block_tokens;
            let end = sequence.num_submitted_tokens;
            for &block in
                &sequence.block_table.blocks()[first as usize..end.div_ceil(self.block_tokens) as usize]
            {
                if self.kv.ref_count(block) != 1 || !written.insert(block) {
                    return Err(format!("page {block} is written by {:?} and not its own", sequence.id));
                }
            }
        }
        Ok(())
    }
}
