//! Finds computed blocks by what they hold.
//!
//! A block's key is SHA-256 over its parent's key and its token ids, and the chain starts from the request's
//! salt. So a key stands for the whole prefix, equal keys mean equal prefixes under one salt, and nobody can
//! construct a collision with another tenant's prompt.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use sha2::{Digest, Sha256};

use super::BlockId;
use crate::sequence::TokenId;

/// Key of one full block and all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash(pub [u8; 32]);

/// A block of SHA-256's own.
const HASHED_AT_ONCE: usize = 16;

/// Extends a chain by one full block. The chain's root is the cache salt.
pub fn hash_block(parent: &BlockHash, tokens: &[TokenId]) -> BlockHash {
    let mut hasher = Sha256::new_with_prefix(parent.0);
    for tokens in tokens.chunks(HASHED_AT_ONCE) {
        let mut bytes = [0; 4 * HASHED_AT_ONCE];
        for (word, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            word.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..4 * tokens.len()]);
    }
    BlockHash(hasher.finalize().into())
}

#[derive(Debug)]
pub(super) struct PrefixIndex {
    blocks: HashMap<BlockHash, BlockId, FixedState>,
}

impl PrefixIndex {
    /// Room for every page, so that no insertion ever pays for growth.
    pub(super) fn with_capacity(num_blocks: u32) -> Self {
        Self { blocks: HashMap::with_capacity_and_hasher(num_blocks as usize, FixedState::default()) }
    }

    pub(super) fn get(&self, hash: &BlockHash) -> Option<BlockId> {
        self.blocks.get(hash).copied()
    }

    /// False, and nothing changes, if the key is present.
    pub(super) fn insert(&mut self, hash: BlockHash, block: BlockId) -> bool {
        match self.blocks.entry(hash) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(block);
                true
            }
        }
    }

    pub(super) fn remove(&mut self, hash: &BlockHash) {
        self.blocks.remove(hash);
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }
}
