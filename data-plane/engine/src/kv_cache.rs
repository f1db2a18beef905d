//! The paged KV cache: who holds which page, and which pages can be shared.
//!
//! It owns page *ids* and their reference counts; the bytes are the executor's. It knows hashes and block
//! tables, never a sequence, a tenant or a plan. Every operation is O(1) for each block it names.
//!
//! Each page is at any moment in exactly one state:
//! - *free*: no reference, holds nothing;
//! - *cached*: no reference, holds a computed block that the prefix index finds; reused last-used first;
//! - *referenced*: held by one block table, or by several that share a prefix.

mod block;
mod block_pool;
mod block_table;
mod prefix_index;

pub use block::BlockState;
pub use block_table::BlockTable;
pub use prefix_index::{BlockHash, hash_block};

use crate::step::{Page, PageCopy};
use block_pool::BlockPool;
use prefix_index::PrefixIndex;

/// Index of a page in the executor's pool. The page's contents are the executor's; only its index is ours.
pub type BlockId = u32;

/// How many pages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockUsage {
    /// Pages that hold nothing.
    pub free: u32,
    /// Unreferenced pages kept for their contents.
    pub cached: u32,
    /// Pages in at least one block table.
    pub referenced: u32,
}

/// The cached prefix of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Leading blocks found.
    pub blocks: u32,
    /// Those of them that nobody references, so that taking them lowers what is available.
    pub unreferenced: u32,
}

/// No page could be had: all are referenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("every page of the KV cache is referenced")]
pub struct OutOfBlocks;

/// The pages of one pool.
#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    index: PrefixIndex,
}

impl KvCache {
    /// A cache of `num_blocks` pages, all free.
    pub fn new(num_blocks: u32) -> Self {
        Self { pool: BlockPool::new(num_blocks), index: PrefixIndex::with_capacity(num_blocks) }
    }

    /// Pages by state.
    pub fn usage(&self) -> BlockUsage {
        let (free, cached) = (self.pool.num_free(), self.pool.num_cached());
        BlockUsage { free, cached, referenced: self.pool.num_blocks() - free - cached }
    }

    /// Pages that can be had now, free or by forgetting cached ones.
    pub fn num_available(&self) -> u32 {
        self.pool.num_free() + self.pool.num_cached()
    }

    /// How many block tables hold a page.
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.pool.ref_count(block)
    }

    /// Length of the longest cached prefix of a hash chain.
    pub fn match_prefix(&self, chain: &[BlockHash]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for block in chain.iter().map_while(|hash| self.index.get(hash)) {
            found.blocks += 1;
            found.unreferenced += u32::from(self.pool.ref_count(block) == 0);
        }
        found
    }

    /// A table of `num_blocks` pages: the blocks of `cached_chain` (all of which [`Self::match_prefix`] found),
    /// then fresh ones.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if not all can be had; nothing has changed then.
    pub fn allocate(
        &mut self,
        cached_chain: &[BlockHash],
        num_blocks: u32,
    ) -> Result<BlockTable, OutOfBlocks> {
        let found = self.match_prefix(cached_chain);
        let available = self.num_available() - found.unreferenced;
        if num_blocks.saturating_sub(found.blocks) > available {
            return Err(OutOfBlocks);
        }
        let mut blocks = Vec::with_capacity(num_blocks as usize + 1);
        for block in cached_chain.iter().map_while(|hash| self.index.get(hash)) {
            self.pool.acquire(block);
            blocks.push(block);
        }
        while blocks.len() < num_blocks as usize {
            blocks.push(self.take_fresh()?);
        }
        Ok(BlockTable::new(blocks))
    }

    /// Grows a table to `num_blocks` pages, and makes its page `written_block` (index in the table), if it is
    /// among those held before, the table's alone: a shared one is replaced by a copy, appended to `copies`.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if a page is missing; what was already done is kept and a later call goes on from there.
    pub fn prepare_write(
        &mut self,
        table: &mut BlockTable,
        num_blocks: u32,
        written_block: u32,
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), OutOfBlocks> {
        if let Some(&shared) = table.blocks().get(written_block as usize)
            && self.pool.ref_count(shared) > 1
        {
            let own = self.take_fresh()?;
            copies.push(PageCopy { from: Page::Pool(shared), to: Page::Pool(own) });
            table.replace(written_block as usize, own);
            self.pool.release(shared);
        }
        while table.len() < num_blocks as usize {
            table.push(self.take_fresh()?);
        }
        Ok(())
    }

    /// A second table over the same pages; whoever writes a shared page first copies it.
    pub fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in table.blocks() {
            self.pool.acquire(block);
        }
        table.clone()
    }

    /// Gives a table's pages back. Deep blocks are forgotten before those nearer the root, as they are of no
    /// use without them.
    pub fn release(&mut self, table: &BlockTable) {
        for &block in table.blocks().iter().rev() {
            self.pool.release(block);
        }
    }

    /// Makes a block findable. Call once, when all its positions are computed. If an equal block is findable
    /// already, that one stays and this one is forgotten with its last reference.
    pub fn publish(&mut self, block: BlockId, hash: BlockHash) {
        if self.index.insert(hash, block) {
            self.pool.set_hash(block, hash);
        }
    }

    /// Verifies every invariant of this module against the tables that are alive. O(pages); for tests and
    /// debugging.
    ///
    /// # Errors
    /// A text that names the broken invariant and the page.
    pub fn check_integrity<'a>(
        &self,
        tables: impl IntoIterator<Item = &'a BlockTable>,
    ) -> Result<(), String> {
        let mut expected_refs = vec![0_u32; self.pool.num_blocks() as usize];
        for &block in tables.into_iter().flat_map(BlockTable::blocks) {
            expected_refs[block as usize] += 1;
        }
        self.pool.check_integrity(&expected_refs)?;
        let mut num_hashed = 0;
        for block in 0..self.pool.num_blocks() {
            if let Some(hash) = self.pool.hash(block) {
                num_hashed += 1;
                if self.index.get(&hash) != Some(block) {
                    return Err(format!("block {block} has a hash that the index does not map to it"));
                }
            }
        }
        if num_hashed == self.index.len() {
            Ok(())
        } else {
            Err(format!("{} index entries for {num_hashed} hashed blocks", self.index.len()))
        }
    }

    fn take_fresh(&mut self) -> Result<BlockId, OutOfBlocks> {
        let (block, forgotten) = self.pool.take().ok_or(OutOfBlocks)?;
        if let Some(hash) = forgotten {
            self.index.remove(&hash);
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests;
