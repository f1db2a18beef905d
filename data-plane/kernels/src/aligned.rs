//! Zeroed bytes on cache-line boundaries, in huge pages where the system has them: weights and KV pages are streamed at every
//! step, and with 4 KiB pages address translation alone would cost a good part of the bandwidth.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A cache line, and the widest vector.
const LINE_BYTES: usize = 64;
/// x86's and aarch64's usual huge page; buffers from this length on are aligned to it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An owned buffer; dereferences to its bytes.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer is owned exclusively and borrowed by the usual rules through `Deref`.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes. Aborts where `Vec` would if there is no memory.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<u8>()))
    }

    /// `len` zero bytes, which the system gives as they are first touched; `None` if it refuses.
    pub(crate) fn try_zeroed(len: usize) -> Option<Self> {
        let alignment = if len >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { LINE_BYTES };
        let layout = Layout::from_size_align(len.max(1), alignment).ok()?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let buffer = Self { base, layout };
        buffer.advise_huge_pages();
        Some(buffer)
    }

    #[cfg(target_os = "linux")]
    fn advise_huge_pages(&self) {
        if self.layout.align() == HUGE_PAGE_BYTES {
            let len = self.layout.size() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            // SAFETY: the range is whole pages inside this allocation, and the advice changes no contents. A refusal costs
            // speed only.
            unsafe { libc::madvise(self.base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge_pages(&self) {}
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is this long, initialised (zeroed), and borrowed through `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.layout.size()) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.layout.size()) }
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len());
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout and not freed before.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_and_aligned() {
        for len in [1, 64, 1000, HUGE_PAGE_BYTES + 5] {
            let mut buffer = AlignedBytes::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(
                buffer.iter().all(|byte| *byte == 0) && buffer.as_ptr().addr().is_multiple_of(LINE_BYTES)
            );
            buffer[len - 1] = 7;
            assert_eq!(buffer.clone()[len - 1], 7);
        }
    }
}
