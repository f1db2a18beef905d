//! Every invariant of the scheduler, verified at once. For tests after each step, and for debugging.

use std::collections::HashSet;

use super::{Class, Scheduler};
use crate::kv_cache::BlockId;

impl Scheduler {
    /// # Errors
    /// A text that names the broken invariant.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        self.kv.check_integrity(self.slots.iter().map(|sequence| &sequence.block_table))?;
        let seated = self.slots.iter().filter(|sequence| sequence.has_seat()).count();
        let distinct: HashSet<_> = self.running.iter().collect();
        if seated != self.running.len() || distinct.len() != seated {
            return Err(format!("{} running, {seated} hold pages", self.running.len()));
        }
        if self.running.len() > self.config.seats as usize {
            return Err(format!("{} running on {} seats", self.running.len(), self.config.seats));
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
            let writable = sequence.block_table.len() as u64 * u64::from(self.block_tokens);
            if writable < u64::from(sequence.num_computed_tokens + sequence.planned_tokens) {
                return Err(format!("{id:?} has more computed tokens than room in its pages"));
            }
            if sequence.published_blocks * self.block_tokens > sequence.num_computed_tokens {
                return Err(format!("{id:?} has published a block that is not computed"));
            }
            if sequence.in_flight != (sequence.planned_tokens > 0) {
                return Err(format!("{id:?} is planned and not in flight, or the reverse"));
            }
        }
        if self.fair.num_active() != self.slots.iter().count() {
            return Err(format!("tenants count {} sequences", self.fair.num_active()));
        }
        self.check_writes_in_flight()
    }

    /// Each page that the submission in flight writes belongs to one sequence and is written by one row.
    fn check_writes_in_flight(&self) -> Result<(), String> {
        let mut written: HashSet<BlockId> = HashSet::new();
        for &slot in &self.in_flight {
            let sequence = &self.slots[slot];
            let first = sequence.num_computed_tokens / self.block_tokens;
            let end = sequence.num_computed_tokens + sequence.planned_tokens;
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
