//! Sixteen lanes, whatever the instruction set: the one abstraction that the kernels are written over.
//!
//! A value of a [`Simd`] type is a proof that this machine has the instruction set; it can be made only where that was
//! checked, which is why arithmetic on it is safe. Every operation gives the same bits on every implementation (fused
//! multiply-add everywhere, reductions over lanes in one fixed tree), so a kernel written over the trait does too.
//!
//! A kernel is a value with [`Kernel::run`]; [`dispatch`] enters it inside a function that has the instruction set enabled.
//! Everything below must therefore inline: implementations mark each function `#[inline(always)]`, and kernels avoid
//! closures in loops.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;

use super::isa::Isa;

/// Lanes of every vector.
pub(super) const LANES: usize = 16;

/// An instruction set. `F` is sixteen `f32`, `I` sixteen `i32`, `C` sixty-four unsigned bytes (four for each lane).
///
/// # Safety of the loads and stores
///
/// Pointers need no alignment; they must be valid for the whole vector.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    type F: Copy;
    type I: Copy;
    type C: Copy;

    /// Activation rows whose partial sums fit the registers of the matrix kernel.
    const MATMUL_ROWS: usize;
    /// Query heads whose partial outputs (four vectors each) fit the registers of the attention kernel.
    const QUERIES: usize;
    /// Whether AMX machines have it: tiles are combined with no other, so no other needs their kernels compiled.
    const GOES_WITH_TILES: bool;
    /// Whether [`Simd::dot_bytes`] takes 128 off every code.
    const BYTES_ARE_BIASED: bool;

    fn splat(self, value: f32) -> Self::F;
    /// # Safety
    /// Valid for reading sixteen `f32`.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// # Safety
    /// Valid for writing sixteen `f32`.
    unsafe fn store(self, to: *mut f32, value: Self::F);
    /// # Safety
    /// Valid for reading sixteen half-precision numbers.
    unsafe fn load_half(self, from: *const u16) -> Self::F;
    /// Rounds to nearest even.
    ///
    /// # Safety
    /// Valid for writing sixteen half-precision numbers.
    unsafe fn store_half(self, to: *mut u16, value: Self::F);
    /// # Safety
    /// Valid for reading sixteen bfloat16 numbers.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`, so `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lane `i` of `a` where bit `i` of `mask` is set, else of `b`.
    fn select(self, mask: u16, a: Self::F, b: Self::F) -> Self::F;
    /// 2 to the power of each lane, −126 ..= 127.
    fn power_of_two(self, exponent: Self::I) -> Self::F;

    fn splat_i(self, value: i32) -> Self::I;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I;
    fn to_float(self, a: Self::I) -> Self::F;
    /// To the nearest integer, ties to even; unspecified outside of `i32`.
    fn round(self, a: Self::F) -> Self::I;
    /// # Safety
    /// Valid for reading sixteen `i32`.
    unsafe fn load_i(self, from: *const i32) -> Self::I;
    /// Stores the low byte of each lane, which must be in −128 ..= 127 to be kept.
    ///
    /// # Safety
    /// Valid for writing sixteen bytes.
    unsafe fn store_bytes(self, to: *mut i8, value: Self::I);

    /// # Safety
    /// Valid for reading 64 bytes.
    unsafe fn load_codes(self, from: *const u8) -> Self::C;
    /// # Safety
    /// Valid for writing 64 bytes.
    unsafe fn store_codes(self, to: *mut u8, codes: Self::C);
    fn low_nibbles(self, codes: Self::C) -> Self::C;
    fn high_nibbles(self, codes: Self::C) -> Self::C;
    /// `a[lane] + Σ codes[4·lane + j] · quad[j]` with codes below 128 and `quad` four signed bytes.
    fn dot(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I;
    /// The same with any codes, each taken as `code − 128` if [`Simd::BYTES_ARE_BIASED`]; no byte of `quad` is −128.
    fn dot_bytes(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I;

    /// Hints that the cache line at `at` will be read soon; any address will do.
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        _ = at;
    }

    #[inline(always)]
    fn to_array(self, value: Self::F) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array is sixteen `f32`.
        unsafe { self.store(lanes.as_mut_ptr(), value) };
        lanes
    }

    #[inline(always)]
    fn array(self, lanes: &[f32; LANES]) -> Self::F {
        // SAFETY: the array is sixteen `f32`.
        unsafe { self.load(lanes.as_ptr()) }
    }

    /// The sum of all lanes, in one fixed tree.
    #[inline(always)]
    fn reduce_add(self, value: Self::F) -> f32 {
        let mut lanes = self.to_array(value);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    /// The largest lane; unspecified which if one is NaN.
    #[inline(always)]
    fn reduce_max(self, value: Self::F) -> f32 {
        let lanes = self.to_array(value);
        let mut largest = lanes[0];
        for lane in lanes {
            largest = if lane > largest { lane } else { largest };
        }
        largest
    }

    /// The sum of all lanes.
    fn reduce_add_i(self, value: Self::I) -> i32;
}

/// Work that [`dispatch`] runs on an instruction set.
pub(super) trait Kernel {
    type Output;

    /// Must be `#[inline(always)]`, and so must all that it calls.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` on `isa`, or on the best weaker one if this machine lacks it (the bits are the same).
pub(super) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::AmxInt8 => {
            if let Some(simd) = avx512::Avx512::detect() {
                return simd.enter(kernel);
            }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            if let Some(simd) = avx2::Avx2::detect() {
                return simd.enter(kernel);
            }
        }
        _ => {}
    }
    kernel.run(generic::Generic)
}

/// Whether this machine has the instruction sets, for [`Isa::detect`].
pub(super) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx2::Avx2::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

pub(super) fn has_avx512_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::Avx512::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests;
