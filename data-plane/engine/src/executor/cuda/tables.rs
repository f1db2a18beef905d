//! What of the device's block tables a step changes, so that it sends only that.

use weir_kernels::cuda::ops::PageEntry;

use crate::kv_cache::BlockId;
use crate::step::{BlockTables, TableUpdate};

/// What a step changes in the device's tables.
#[derive(Debug)]
pub(super) struct Changes<'a> {
    max_entries: usize,
    /// As many as a step has room for: enough for tables that grow.
    pub(super) entries: Vec<PageEntry>,
    /// Tables that are sent whole: long ones that begin, from the prefix cache or after a preemption.
    pub(super) whole: Vec<(usize, &'a [BlockId])>,
}

impl<'a> Changes<'a> {
    pub(super) fn new(max_entries: usize) -> Self {
        Self { max_entries, entries: Vec::new(), whole: Vec::new() }
    }

    /// Adds what the device lacks of a table. `held` is what it has once all submitted steps have run, and takes the table
    /// in.
    pub(super) fn note(&mut self, table: &'a TableUpdate, held: &mut BlockTables) {
        let (seat, blocks) = (table.seat.0 as usize, table.blocks.blocks());
        // What the device holds beyond a table is never read.
        let before = held.blocks(table.seat, table.layer_group);
        let num_entries = self.entries.len();
        for (block, &page) in blocks.iter().enumerate() {
            if before.get(block) != Some(&page) {
                self.entries.push(PageEntry { seat, block, page });
            }
        }
        if self.entries.len() > self.max_entries {
            self.entries.truncate(num_entries);
            self.whole.push((seat, blocks));
        }
        held.set(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::BlockTable;
    use crate::step::{Seat, StepPlan};

    fn table(seat: u32, blocks: &[BlockId]) -> TableUpdate {
        TableUpdate { seat: Seat(seat), layer_group: 0, blocks: BlockTable::new(blocks.to_vec()) }
    }

    fn sent(held: &mut BlockTables, seat: u32, blocks: &[BlockId]) -> Vec<(usize, usize, BlockId)> {
        let (mut changes, table) = (Changes::new(8), table(seat, blocks));
        changes.note(&table, held);
        assert!(changes.whole.is_empty());
        changes.entries.iter().map(|entry| (entry.seat, entry.block, entry.page)).collect()
    }

    #[test]
    fn only_what_changed_is_sent() {
        let mut held = BlockTables::new(2, 1);
        let mut update = |seat, blocks: &[BlockId]| sent(&mut held, seat, blocks);
        assert_eq!(update(1, &[7, 8]), [(1, 0, 7), (1, 1, 8)]);
        assert_eq!(update(1, &[7, 8]), []);
        assert_eq!(update(1, &[7, 9, 10]), [(1, 1, 9), (1, 2, 10)], "copied on write, and grown");
        assert_eq!(update(0, &[7]), [(0, 0, 7)]);
        assert_eq!(update(1, &[7]), [], "a shorter one is there already");
        assert_eq!(update(1, &[7, 9]), [(1, 1, 9)], "nobody keeps what was behind it");
        let refused = StepPlan { block_tables: vec![table(1, &[2])], ..StepPlan::default() };
        held.forget(&refused);
        assert_eq!(sent(&mut held, 1, &[7, 9]), [(1, 0, 7), (1, 1, 9)]);
    }

    #[test]
    fn what_a_step_has_no_room_for_is_sent_as_a_whole_table() {
        let mut held = BlockTables::new(3, 1);
        let tables = [table(0, &[1, 2]), table(1, &[3, 4]), table(2, &[5])];
        let mut changes = Changes::new(3);
        tables.iter().for_each(|table| changes.note(table, &mut held));
        assert_eq!(changes.whole, [(1, &[3, 4][..])]);
        let entries: Vec<_> = changes.entries.iter().map(|entry| (entry.seat, entry.page)).collect();
        assert_eq!(entries, [(0, 1), (0, 2), (2, 5)]);
        assert_eq!(sent(&mut held, 1, &[3, 4, 6]), [(1, 2, 6)], "and is held from then on");
    }
}
