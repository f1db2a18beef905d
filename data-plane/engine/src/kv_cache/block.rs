//! What is known of one page.

use super::prefix_index::BlockHash;

/// The one state that a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// No reference, nothing worth keeping.
    Free,
    /// No reference, findable by its hash.
    Cached,
    /// In at least one block table.
    Referenced,
}

/// End of a list.
pub(super) const NONE: u32 = u32::MAX;

/// Bookkeeping of one page. Its state follows from the two facts `ref_count` and `hash`, so that no third one
/// can contradict them.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) ref_count: u32,
    /// Set while the page holds a full computed block that the prefix index maps to it.
    pub(super) hash: Option<BlockHash>,
    /// Neighbours in the list of cached blocks, least recently used first; `NONE` unless cached.
    pub(super) lru_previous: u32,
    pub(super) lru_next: u32,
}

impl Block {
    pub(super) const FREE: Self = Self { ref_count: 0, hash: None, lru_previous: NONE, lru_next: NONE };

    pub(super) fn state(&self) -> BlockState {
        match (self.ref_count, self.hash) {
            (0, None) => BlockState::Free,
            (0, Some(_)) => BlockState::Cached,
            _ => BlockState::Referenced,
        }
    }
}
