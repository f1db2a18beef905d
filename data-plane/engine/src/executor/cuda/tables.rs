//! What the device's block tables hold, so that a step sends only what has changed.

use weir_kernels::cuda::ops::PageEntry;

use crate::kv_cache::BlockId;

/// A copy of each seat's table as the device has it once all submitted steps have run.
#[derive(Debug)]
pub(super) struct HeldTables(Vec<Vec<BlockId>>);

impl HeldTables {
    pub(super) fn new(num_seats: usize) -> Self {
        Self(vec![Vec::new(); num_seats])
    }

    /// Adds what a seat's table on the device lacks of `blocks`, and takes it for sent.
    pub(super) fn update<'a>(&mut self, seat: usize, blocks: &'a [BlockId], changes: &mut Changes<'a>) {
        let held = &mut self.0[seat];
        let num_entries = changes.entries.len();
        for (block, &page) in blocks.iter().enumerate() {
            if held.get(block) != Some(&page) {
                changes.entries.push(PageEntry { seat, block, page });
            }
        }
        if changes.entries.len() > changes.max_entries {
            changes.entries.truncate(num_entries);
            changes.whole.push((seat, blocks));
        }
        // What the device holds beyond the table is never read.
        held.clear();
        held.extend_from_slice(blocks);
    }
}

/// What a step changes in the device's tables.
#[derive(Debug)]
pub(super) struct Changes<'a> {
    max_entries: usize,
    /// As many as a step has room for: enough for tables that grow.
    pub(super) entries: Vec<PageEntry>,
    /// Tables that are sent whole: long ones that begin, from the prefix cache or after a preemption.
    pub(super) whole: Vec<(usize, &'a [BlockId])>,
}

impl Changes<'_> {
    pub(super) fn new(max_entries: usize) -> Self {
        Self { max_entries, entries: Vec::new(), whole: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(tables: &mut HeldTables, seat: usize, blocks: &[BlockId]) -> Vec<(usize, usize, BlockId)> {
        let mut changes = Changes::new(8);
        tables.update(seat, blocks, &mut changes);
        assert!(changes.whole.is_empty());
        changes.entries.iter().map(|entry| (entry.seat, entry.block, entry.page)).collect()
    }

    #[test]
    fn only_what_changed_is_sent() {
        let mut tables = HeldTables::new(2);
        let mut update = |seat, blocks: &[BlockId]| sent(&mut tables, seat, blocks);
        assert_eq!(update(1, &[7, 8]), [(1, 0, 7), (1, 1, 8)]);
        assert_eq!(update(1, &[7, 8]), []);
        assert_eq!(update(1, &[7, 9, 10]), [(1, 1, 9), (1, 2, 10)], "copied on write, and grown");
        assert_eq!(update(0, &[7]), [(0, 0, 7)]);
        assert_eq!(update(1, &[7]), [], "a shorter one is there already");
        assert_eq!(update(1, &[7, 9]), [(1, 1, 9)], "nobody keeps what was behind it");
    }

    #[test]
    fn what_a_step_has_no_room_for_is_sent_as_a_whole_table() {
        let mut tables = HeldTables::new(3);
        let mut changes = Changes::new(3);
        for (seat, blocks) in [(0, &[1, 2][..]), (1, &[3, 4]), (2, &[5])] {
            tables.update(seat, blocks, &mut changes);
        }
        assert_eq!(changes.whole, [(1, &[3, 4][..])]);
        let entries: Vec<_> = changes.entries.iter().map(|entry| (entry.seat, entry.page)).collect();
        assert_eq!(entries, [(0, 1), (0, 2), (2, 5)]);
        assert_eq!(sent(&mut tables, 1, &[3, 4, 6]), [(1, 2, 6)], "and is held from then on");
    }
}
