//! AVX-512 (F, BW, DQ, VL) with VNNI: a vector is one register.
//!
//! Every function is a few intrinsics. They are safe to call here because a value of [`Avx512`] exists only where
//! [`Avx512::detect`] found the instruction set; that is what each `SAFETY` line refers to as "the token".

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// A proof that this machine has AVX-512 with VNNI.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The token, if the machine has the instruction set.
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }

    /// Runs a kernel with the instruction set enabled.
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn enabled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: the token proves that the machine has the features.
        unsafe { enabled(self, kernel) }
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type C = __m512i;

    const MATMUL_ROWS: usize = 16;
    const QUERIES: usize = 4;
    const GOES_WITH_TILES: bool = true;
    const BYTES_ARE_BIASED: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Self::F) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                from.cast(),
            ))))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn select(self, mask: u16, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_mask_blend_ps(mask, b, a) }
    }

    #[inline(always)]
    fn power_of_two(self, exponent: Self::I) -> Self::F {
        // SAFETY: the token.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(exponent, _mm512_set1_epi32(127))))
        }
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        // SAFETY: the token.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    unsafe fn load_i(self, from: *const i32) -> Self::I {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, value: Self::I) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(value)) }
    }

    #[inline(always)]
    unsafe fn load_codes(self, from: *const u8) -> Self::C {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_codes(self, to: *mut u8, codes: Self::C) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { _mm512_storeu_si512(to.cast(), codes) }
    }

    #[inline(always)]
    fn low_nibbles(self, codes: Self::C) -> Self::C {
        // SAFETY: the token.
        unsafe { _mm512_and_si512(codes, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, codes: Self::C) -> Self::C {
        // SAFETY: the token.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(codes), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn dot(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_dpbusd_epi32(a, codes, _mm512_set1_epi32(quad)) }
    }

    #[inline(always)]
    fn dot_bytes(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        // SAFETY: the token.
        unsafe { _mm512_dpbusd_epi32(a, codes, _mm512_set1_epi32(quad)) }
    }

    #[inline(always)]
    fn reduce_add(self, value: Self::F) -> f32 {
        // SAFETY: the token.
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps::<1>(value));
            super::avx2::reduce_add_half(half)
        }
    }

    #[inline(always)]
    fn reduce_max(self, value: Self::F) -> f32 {
        // SAFETY: the token.
        unsafe { _mm512_reduce_max_ps(value) }
    }

    #[inline(always)]
    fn reduce_add_i(self, value: Self::I) -> i32 {
        // SAFETY: the token.
        unsafe { _mm512_reduce_add_epi32(value) }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint touches no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}
