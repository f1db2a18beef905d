//! AVX2 with FMA and F16C: a vector is two registers.
//!
//! Every function is a few intrinsics. They are safe to call here because a value of [`Avx2`] exists only where
//! [`Avx2::detect`] found the instruction set; that is what each `SAFETY` line refers to as "the token".

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// A proof that this machine has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The token, if the machine has the instruction set.
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }

    /// Runs a kernel with the instruction set enabled.
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn enabled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: the token proves that the machine has the features.
        unsafe { enabled(self, kernel) }
    }
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type C = [__m256i; 2];

    const MATMUL_ROWS: usize = 4;
    const QUERIES: usize = 1;
    const GOES_WITH_TILES: bool = false;
    const BYTES_ARE_BIASED: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Self::F) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[1]));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn select(self, mask: u16, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the token.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let low = _mm256_set1_epi32(i32::from(mask));
            let high = _mm256_set1_epi32(i32::from(mask >> 8));
            let low = _mm256_cmpeq_epi32(_mm256_and_si256(low, bits), bits);
            let high = _mm256_cmpeq_epi32(_mm256_and_si256(high, bits), bits);
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(b[1], a[1], _mm256_castsi256_ps(high)),
            ]
        }
    }

    #[inline(always)]
    fn power_of_two(self, exponent: Self::I) -> Self::F {
        // SAFETY: the token.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(exponent[0], bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(exponent[1], bias))),
            ]
        }
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        // SAFETY: the token.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: the token.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I {
        // SAFETY: the token.
        unsafe {
            let bits = _mm_cvtsi32_si128(BITS.cast_signed());
            [_mm256_sll_epi32(a[0], bits), _mm256_sll_epi32(a[1], bits)]
        }
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        // SAFETY: the token.
        unsafe { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::I {
        // SAFETY: the token.
        unsafe { [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])] }
    }

    #[inline(always)]
    unsafe fn load_i(self, from: *const i32) -> Self::I {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())] }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, value: Self::I) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(value[0], value[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn load_codes(self, from: *const u8) -> Self::C {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn store_codes(self, to: *mut u8, codes: Self::C) {
        // SAFETY: the token; the caller's pointer is valid for the vector.
        unsafe {
            _mm256_storeu_si256(to.cast(), codes[0]);
            _mm256_storeu_si256(to.add(32).cast(), codes[1]);
        }
    }

    #[inline(always)]
    fn low_nibbles(self, codes: Self::C) -> Self::C {
        // SAFETY: the token.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            [_mm256_and_si256(codes[0], mask), _mm256_and_si256(codes[1], mask)]
        }
    }

    #[inline(always)]
    fn high_nibbles(self, codes: Self::C) -> Self::C {
        // SAFETY: the token.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            [
                _mm256_and_si256(_mm256_srli_epi16::<4>(codes[0]), mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(codes[1]), mask),
            ]
        }
    }

    #[inline(always)]
    fn dot(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        // SAFETY: the token.
        unsafe {
            let quad = _mm256_set1_epi32(quad);
            [dot_half(a[0], codes[0], quad), dot_half(a[1], codes[1], quad)]
        }
    }

    #[inline(always)]
    fn dot_bytes(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        // SAFETY: the token.
        unsafe {
            let quad = _mm256_set1_epi32(quad);
            [dot_biased_half(a[0], codes[0], quad), dot_biased_half(a[1], codes[1], quad)]
        }
    }

    #[inline(always)]
    fn reduce_add(self, value: Self::F) -> f32 {
        // SAFETY: the token.
        unsafe { reduce_add_half(_mm256_add_ps(value[0], value[1])) }
    }

    #[inline(always)]
    fn reduce_max(self, value: Self::F) -> f32 {
        // SAFETY: the token.
        unsafe {
            let half = _mm256_max_ps(value[0], value[1]);
            let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let two = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    fn reduce_add_i(self, value: Self::I) -> i32 {
        // SAFETY: the token.
        unsafe {
            let half = _mm256_add_epi32(value[0], value[1]);
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let two = _mm_add_epi32(quarter, _mm_shuffle_epi32::<0b11_10>(quarter));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
        }
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a hint touches no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// The lower levels of the tree of [`Simd::reduce_add`].
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub(super) unsafe fn reduce_add_half(half: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let two = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Unsigned codes below 128 by signed bytes: a pair's sum is at most 2·127·128 and so never saturates.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot_half(a: __m256i, codes: __m256i, quad: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = _mm256_maddubs_epi16(codes, quad);
        _mm256_add_epi32(a, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// Codes less 128 by signed bytes above −128. The sign moves to the bytes, so the magnitudes (up to 128) are unsigned and a
/// pair's sum is at most 2·128·127, which never saturates.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot_biased_half(a: __m256i, codes: __m256i, quad: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
        dot_half(a, _mm256_abs_epi8(signed), _mm256_sign_epi8(quad, signed))
    }
}
