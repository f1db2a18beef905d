//! Elements of a page, as sixteen single-precision lanes.

use crate::cpu::simd::Simd;

/// How an element of a page is loaded.
pub(super) trait Element {
    const BYTES: usize;

    /// # Safety
    /// Valid for reading sixteen elements.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F;
}

/// Half precision.
pub(super) struct Half;

/// Single precision.
pub(super) struct Single;

impl Element for Half {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_half(from.cast()) }
    }
}

impl Element for Single {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load(from.cast()) }
    }
}
