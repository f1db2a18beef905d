//! Reference counts, the free list and the list of cached blocks. Every operation is O(1).

use super::BlockId;
use super::block::{Block, BlockState, NONE};
use super::prefix_index::BlockHash;

#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// Exactly the blocks in state free.
    free: Vec<BlockId>,
    /// Ends of the doubly linked list of exactly the blocks in state cached.
    lru_oldest: u32,
    lru_newest: u32,
    num_cached: u32,
}

impl BlockPool {
    pub(super) fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::FREE; num_blocks as usize],
            // Reversed, so that the pool fills from page 0 up.
            free: (0..num_blocks).rev().collect(),
            lru_oldest: NONE,
            lru_newest: NONE,
            num_cached: 0,
        }
    }

    pub(super) fn num_blocks(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("built from a u32")
    }

    pub(super) fn num_free(&self) -> u32 {
        u32::try_from(self.free.len()).expect("at most as long as the pool")
    }

    pub(super) fn num_cached(&self) -> u32 {
        self.num_cached
    }

    pub(super) fn ref_count(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].ref_count
    }

    pub(super) fn hash(&self, block: BlockId) -> Option<BlockHash> {
        self.blocks[block as usize].hash
    }

    /// A block with one reference and no contents: a free one, else the cached one unused for longest, whose
    /// hash is returned because the index must forget it.
    pub(super) fn take(&mut self) -> Option<(BlockId, Option<BlockHash>)> {
        if let Some(block) = self.free.pop() {
            self.blocks[block as usize].ref_count = 1;
            return Some((block, None));
        }
        if self.lru_oldest == NONE {
            return None;
        }
        let block = self.lru_oldest;
        self.unlink(block);
        let entry = &mut self.blocks[block as usize];
        entry.ref_count = 1;
        Some((block, entry.hash.take()))
    }

    /// One more reference to a cached or referenced block.
    pub(super) fn acquire(&mut self, block: BlockId) {
        let state = self.blocks[block as usize].state();
        assert!(state != BlockState::Free, "a free block holds nothing to share");
        if state == BlockState::Cached {
            self.unlink(block);
        }
        self.blocks[block as usize].ref_count += 1;
    }

    /// One reference less; the last one makes the block cached or free.
    pub(super) fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        entry.ref_count =
            entry.ref_count.checked_sub(1).expect("a block is released as often as it is taken");
        match entry.state() {
            BlockState::Referenced => {}
            BlockState::Free => self.free.push(block),
            BlockState::Cached => self.link_newest(block),
        }
    }

    /// Records that a referenced block is findable under `hash`.
    pub(super) fn set_hash(&mut self, block: BlockId, hash: BlockHash) {
        let entry = &mut self.blocks[block as usize];
        assert!(entry.ref_count > 0 && entry.hash.is_none(), "a block is published once, by its owner");
        entry.hash = Some(hash);
    }

    pub(super) fn check_integrity(&self, expected_refs: &[u32]) -> Result<(), String> {
        for (index, block) in self.blocks.iter().enumerate() {
            if block.ref_count != expected_refs[index] {
                let held = expected_refs[index];
                return Err(format!(
                    "block {index} counts {} references, tables hold {held}",
                    block.ref_count
                ));
            }
        }
        let mut listed = vec![false; self.blocks.len()];
        let mut list_once = |block: BlockId, state: BlockState| {
            let actual = self.blocks[block as usize].state();
            if actual != state || std::mem::replace(&mut listed[block as usize], true) {
                return Err(format!("block {block} is {actual:?}, or twice in the list of {state:?} ones"));
            }
            Ok(())
        };
        for &block in &self.free {
            list_once(block, BlockState::Free)?;
        }
        let (mut previous, mut current, mut num_cached) = (NONE, self.lru_oldest, 0);
        while current != NONE {
            list_once(current, BlockState::Cached)?;
            if self.blocks[current as usize].lru_previous != previous {
                return Err(format!("block {current} has a broken link"));
            }
            num_cached += 1;
            (previous, current) = (current, self.blocks[current as usize].lru_next);
        }
        if previous != self.lru_newest || num_cached != self.num_cached {
            return Err("the list of cached blocks has a wrong end or count".to_owned());
        }
        match (0..).zip(&listed).find(|(index, listed)| !**listed && expected_refs[*index] == 0) {
            Some((index, _)) => Err(format!("block {index} is unreferenced and in no list")),
            None => Ok(()),
        }
    }

    fn link_newest(&mut self, block: BlockId) {
        let newest = self.lru_newest;
        let entry = &mut self.blocks[block as usize];
        (entry.lru_previous, entry.lru_next) = (newest, NONE);
        match self.blocks.get_mut(newest as usize) {
            Some(neighbour) => neighbour.lru_next = block,
            None => self.lru_oldest = block,
        }
        self.lru_newest = block;
        self.num_cached += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        let (previous, next) = (entry.lru_previous, entry.lru_next);
        (entry.lru_previous, entry.lru_next) = (NONE, NONE);
        match self.blocks.get_mut(previous as usize) {
            Some(neighbour) => neighbour.lru_next = next,
            None => self.lru_oldest = next,
        }
        match self.blocks.get_mut(next as usize) {
            Some(neighbour) => neighbour.lru_previous = previous,
            None => self.lru_newest = previous,
        }
        self.num_cached -= 1;
    }
}
