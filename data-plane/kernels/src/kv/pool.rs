//! The allocation behind the pages.

use std::ptr::NonNull;

use super::{KvType, PageLayout};
use crate::aligned::AlignedBytes;
use crate::quant::half::{f16_to_f32, f32_to_f16};

/// The pages of a pool as pointers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPages {
    layout: PageLayout,
    page_bytes: usize,
    num_pages: usize,
    base: NonNull<u8>,
}

// SAFETY: only pointers; what is done through them is their users' to answer for.
unsafe impl Send for RawPages {}
// SAFETY: as above.
unsafe impl Sync for RawPages {}

impl RawPages {
    /// What a page holds.
    pub(crate) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Where the keys of a head of a layer of a page start; its values follow. Panics if there is no such page, layer or head.
    #[inline(always)]
    pub(crate) fn head(&self, page: u32, layer: usize, kv_head: usize) -> *mut u8 {
        let page = page as usize;
        assert!(page < self.num_pages, "page {page} of {}", self.num_pages);
        let offset = page * self.page_bytes + self.layout.head_offset(layer, kv_head);
        // SAFETY: a whole head follows the offset inside the pool's allocation: page, layer and head were checked.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

/// Why a pool cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A layout with a zero, or a head dimension that is not a multiple of 16.
    #[error("impossible page layout {layout:?}")]
    Layout {
        /// The layout asked for.
        layout: PageLayout,
    },
    /// More bytes than there are.
    #[error("cannot allocate {num_pages} KV pages of {page_bytes} bytes")]
    Memory {
        /// Pages asked for.
        num_pages: usize,
        /// Bytes of each.
        page_bytes: usize,
    },
}

/// Equal pages in one aligned allocation, zeroed (the operating system gives the memory as it is first touched).
#[derive(Debug)]
pub struct PagePool {
    layout: PageLayout,
    page_bytes: usize,
    num_pages: usize,
    bytes: AlignedBytes,
}

impl PagePool {
    /// Allocates `num_pages` pages (at least one).
    pub fn new(layout: PageLayout, num_pages: usize) -> Result<Self, KvError> {
        let page_bytes = layout
            .page_bytes()
            .filter(|bytes| *bytes > 0 && layout.head_dim.is_multiple_of(16))
            .ok_or(KvError::Layout { layout })?;
        let memory = KvError::Memory { num_pages, page_bytes };
        let bytes = page_bytes.checked_mul(num_pages).filter(|bytes| *bytes > 0).ok_or(memory)?;
        let bytes = AlignedBytes::try_zeroed(bytes).ok_or(memory)?;
        Ok(Self { layout, page_bytes, num_pages, bytes })
    }

    /// What a page holds.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Number of pages; ids are `0..num_pages`.
    pub fn num_pages(&self) -> usize {
        self.num_pages
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The bytes of a page (for swapping out). Panics if there is no such page.
    pub fn page(&self, page: u32) -> &[u8] {
        let offset = self.page_offset(page);
        &self.bytes[offset..offset + self.page_bytes]
    }

    /// The bytes of a page, writable (for swapping in). Panics if there is no such page.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        let offset = self.page_offset(page);
        &mut self.bytes[offset..offset + self.page_bytes]
    }

    /// Copies a page over another (copy-on-write). Panics if there is no such page.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (self.page_offset(from), self.page_offset(to));
        self.bytes.copy_within(from..from + self.page_bytes, to);
    }

    fn page_offset(&self, page: u32) -> usize {
        let page = page as usize;
        assert!(page < self.num_pages, "page {page} of {}", self.num_pages);
        page * self.page_bytes
    }

    /// The pages as pointers, for kernels that share them among threads. Valid while the pool lives and is not otherwise used.
    pub(crate) fn raw(&mut self) -> RawPages {
        let base = NonNull::new(self.bytes.as_mut_ptr()).expect("a slice's pointer is never null");
        RawPages { layout: self.layout, page_bytes: self.page_bytes, num_pages: self.num_pages, base }
    }

    /// The key of a head at a slot of a page, as single precision.
    pub fn read_key(&self, page: u32, layer: usize, kv_head: usize, slot: usize, out: &mut [f32]) {
        let offset = self.layout.head_offset(layer, kv_head);
        self.read(page, out, |component| offset + self.layout.kv_type.bytes() * (component * 16 + slot));
    }

    /// The value of a head at a slot of a page, as single precision.
    pub fn read_value(&self, page: u32, layer: usize, kv_head: usize, slot: usize, out: &mut [f32]) {
        let offset = self.layout.head_offset(layer, kv_head) + self.layout.values_after();
        let head_dim = self.layout.head_dim;
        self.read(page, out, |component| {
            offset + self.layout.kv_type.bytes() * (slot * head_dim + component)
        });
    }

    fn read(&self, page: u32, out: &mut [f32], place: impl Fn(usize) -> usize) {
        let bytes = self.page(page);
        for (component, out) in out.iter_mut().enumerate() {
            let at = place(component);
            *out = match self.layout.kv_type {
                KvType::F16 => f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]])),
                KvType::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            };
        }
    }

    /// Stores key and value of a head at a slot of a page, rounded to the pool's type.
    pub fn write(
        &mut self,
        page: u32,
        layer: usize,
        kv_head: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let PageLayout { head_dim, kv_type, .. } = self.layout;
        assert!(slot < 16 && key.len() == head_dim && value.len() == head_dim, "one head's key and value");
        let keys = self.layout.head_offset(layer, kv_head);
        let values = keys + self.layout.values_after();
        let bytes = self.page_mut(page);
        for component in 0..head_dim {
            put(bytes, keys + kv_type.bytes() * (component * 16 + slot), kv_type, key[component]);
            put(bytes, values + kv_type.bytes() * (slot * head_dim + component), kv_type, value[component]);
        }
    }
}

fn put(bytes: &mut [u8], at: usize, kv_type: KvType, value: f32) {
    match kv_type {
        KvType::F16 => bytes[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes()),
        KvType::F32 => bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(kv_type: KvType) -> PageLayout {
        PageLayout { num_layers: 2, num_kv_heads: 3, head_dim: 32, kv_type }
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_changes() {
        for kv_type in [KvType::F16, KvType::F32] {
            let mut pool = PagePool::new(layout(kv_type), 3).unwrap();
            assert_eq!(pool.page_bytes(), 2 * 3 * 2 * 32 * 16 * kv_type.bytes());
            let key: Vec<f32> = (0..32_u8).map(|i| f32::from(i) + 0.5).collect();
            let value: Vec<f32> = (0..32_u8).map(|i| -f32::from(i)).collect();
            pool.write(1, 1, 2, 15, &key, &value);
            let mut out = vec![0.0; 32];
            pool.read_key(1, 1, 2, 15, &mut out);
            assert_eq!(out, key);
            pool.read_value(1, 1, 2, 15, &mut out);
            assert_eq!(out, value);
            pool.copy_page(1, 2);
            assert_eq!(pool.page(1), pool.page(2));
            assert!(pool.page(0).iter().all(|byte| *byte == 0));
            let nonzero = pool.page(1).iter().filter(|byte| **byte != 0).count();
            assert!(nonzero <= 64 * kv_type.bytes());
        }
    }

    #[test]
    fn impossible_pools_are_refused() {
        let odd = PageLayout { head_dim: 24, ..layout(KvType::F16) };
        assert_eq!(PagePool::new(odd, 1).unwrap_err(), KvError::Layout { layout: odd });
        assert!(matches!(PagePool::new(layout(KvType::F16), 0), Err(KvError::Memory { .. })));
        assert!(matches!(PagePool::new(layout(KvType::F16), usize::MAX / 4), Err(KvError::Memory { .. })));
    }

    #[test]
    #[should_panic(expected = "page 3 of 3")]
    fn a_page_outside_the_pool_is_a_bug() {
        PagePool::new(layout(KvType::F16), 3).unwrap().page(3);
    }
}
