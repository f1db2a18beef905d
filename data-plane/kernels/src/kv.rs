//! The pool of KV pages: one aligned allocation of equal pages, and where a page keeps what.
//!
//! Owns the memory and the layout; which page belongs to whom is the engine's `kv_cache`. A page holds [`BLOCK_TOKENS`]
//! positions of `num_layers` layers (all of the model's, or one layer group's: pages are then equal across groups).
//! Within a page, layer by layer, KV head by KV head: keys transposed `[head_dim][16]`, so that sixteen scores are one
//! vector; then values `[16][head_dim]`, so that an output vector grows by whole rows. Neither kernel ever adds across
//! lanes, which keeps every reduction in one order on every machine.

mod pool;

pub(crate) use pool::RawPages;
pub use pool::{KvError, PagePool};

/// Positions in a page.
pub const BLOCK_TOKENS: usize = 16;

/// Element type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision: half the bytes, for serving.
    F16,
    /// Single precision: for the reference.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Layers in a page.
    pub num_layers: usize,
    /// KV heads of each.
    pub num_kv_heads: usize,
    /// Components of a head; a multiple of 16.
    pub head_dim: usize,
    /// Element type.
    pub kv_type: KvType,
}

impl PageLayout {
    /// Bytes of a page, a multiple of 64; `None` if that overflows.
    pub fn page_bytes(&self) -> Option<usize> {
        self.num_layers.checked_mul(self.num_kv_heads)?.checked_mul(2)?.checked_mul(self.head_bytes()?)
    }

    /// Bytes of the keys (or the values) of one head of one layer.
    fn head_bytes(&self) -> Option<usize> {
        self.head_dim.checked_mul(BLOCK_TOKENS * self.kv_type.bytes())
    }

    /// Where the keys of a head of a layer start in a page; the values follow `values_after` bytes later.
    pub(crate) fn head_offset(&self, layer: usize, kv_head: usize) -> usize {
        assert!(layer < self.num_layers && kv_head < self.num_kv_heads, "no such layer or head in the page");
        (layer * self.num_kv_heads + kv_head) * 2 * self.values_after()
    }

    /// Bytes between the keys and the values of a head.
    pub(crate) fn values_after(&self) -> usize {
        self.head_dim * BLOCK_TOKENS * self.kv_type.bytes()
    }
}
