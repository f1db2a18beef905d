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

    /// Appends what a seat's table on the device lacks of `blocks`, and takes it for sent.
    pub(super) fn update(&mut self, seat: usize, blocks: &[BlockId], entries: &mut Vec<PageEntry>) {
        let held = &mut self.0[seat];
        for (block, &page) in blocks.iter().enumerate() {
            if held.get(block) != Some(&page) {
                entries.push(PageEntry { seat, block, page });
            }
        }
        // What the device holds beyond the table is never read.
        held.clear();
        held.extend_from_slice(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent() {
        let mut tables = HeldTables::new(2);
        let mut update = |seat, blocks: &[BlockId]| {
            let mut entries = Vec::new();
            tables.update(seat, blocks, &mut entries);
            entries.iter().map(|entry| (entry.seat, entry.block, entry.page)).collect::<Vec<_>>()
        };
        assert_eq!(update(1, &[7, 8]), [(1, 0, 7), (1, 1, 8)]);
        assert_eq!(update(1, &[7, 8]), []);
        assert_eq!(update(1, &[7, 9, 10]), [(1, 1, 9), (1, 2, 10)], "copied on write, and grown");
        assert_eq!(update(0, &[7]), [(0, 0, 7)]);
        assert_eq!(update(1, &[7]), [], "a shorter one is there already");
        assert_eq!(update(1, &[7, 9]), [(1, 1, 9)], "nobody keeps what was behind it");
    }
}
