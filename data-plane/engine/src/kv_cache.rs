//! The paged KV cache: who holds which page, and which pages can be shared.

mod block_table;

pub use block_table::BlockTable;

/// Index of a page in the executor's pool. The page's contents are the executor's; only its index is ours.
pub type BlockId = u32;
