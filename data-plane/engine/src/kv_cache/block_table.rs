//! The pages of one sequence, in order of position.

use std::sync::Arc;

use super::BlockId;

/// Block ids by block index. A clone is a reference: a plan carries the table of each row at the price of a
/// counter, and the table is copied only if it grows while such a clone is alive.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    blocks: Arc<Vec<BlockId>>,
    /// No block's id is as large.
    bound: BlockId,
}

impl BlockTable {
    /// A table that holds these blocks.
    pub fn new(blocks: Vec<BlockId>) -> Self {
        let bound = blocks.iter().max().map_or(0, |largest| largest.saturating_add(1));
        Self { blocks: Arc::new(blocks), bound }
    }

    /// The block ids, one for each started block of positions.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Number of blocks held.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// True if no block is held.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// A bound of the block ids: none is as large. Known without looking at them, so that a plan is checked against its pool
    /// quickly; it may be above what a table holds that once held others.
    pub fn bound(&self) -> BlockId {
        self.bound
    }

    pub(super) fn push(&mut self, block: BlockId) {
        self.bound = self.bound.max(block.saturating_add(1));
        Arc::make_mut(&mut self.blocks).push(block);
    }

    pub(super) fn replace(&mut self, index: usize, block: BlockId) {
        self.bound = self.bound.max(block.saturating_add(1));
        Arc::make_mut(&mut self.blocks)[index] = block;
    }
}

impl PartialEq for BlockTable {
    /// The same blocks; the bound may remember others.
    fn eq(&self, other: &Self) -> bool {
        self.blocks == other.blocks
    }
}

impl Eq for BlockTable {}
