//! Sixteen lanes as arrays, in plain Rust.

use super::{LANES, Simd};
use crate::quant::half::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// Every machine has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Generic;

#[inline(always)]
fn map<T: Copy, U>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    a.map(f)
}

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn dot_lanes(a: [i32; LANES], codes: [u8; 64], quad: i32) -> [i32; LANES] {
    let quad = quad.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
    std::array::from_fn(|lane| {
        let codes = &codes[4 * lane..4 * lane + 4];
        a[lane]
            + i32::from(codes[0]) * quad[0]
            + i32::from(codes[1]) * quad[1]
            + i32::from(codes[2]) * quad[2]
            + i32::from(codes[3]) * quad[3]
    })
}

impl Simd for Generic {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type C = [u8; 64];

    const MATMUL_ROWS: usize = 4;
    const QUERIES: usize = 1;
    const BYTES_ARE_BIASED: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::F {
        // SAFETY: the caller's pointer is valid for sixteen `f32`.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: Self::F) {
        // SAFETY: the caller's pointer is valid for sixteen `f32`.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const u16) -> Self::F {
        // SAFETY: the caller's pointer is valid for sixteen `u16`.
        map(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, f16_to_f32)
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Self::F) {
        // SAFETY: the caller's pointer is valid for sixteen `u16`.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(map(value, f32_to_f16)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        // SAFETY: the caller's pointer is valid for sixteen `u16`.
        map(unsafe { from.cast::<[u16; LANES]>().read_unaligned() }, bf16_to_f32)
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        map(a, f32::abs)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn select(self, mask: u16, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if mask >> i & 1 == 1 { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn power_of_two(self, exponent: Self::I) -> Self::F {
        map(exponent, |exponent| f32::from_bits((exponent.wrapping_add(127) << 23).cast_unsigned()))
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        [value; LANES]
    }

    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I {
        map(a, |a| a << BITS)
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        #[expect(clippy::cast_precision_loss, reason = "rounds as the hardware's conversion does")]
        map(a, |a| a as f32)
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::I {
        #[expect(clippy::cast_possible_truncation, reason = "a rounded number inside of i32")]
        map(a, |a| a.round_ties_even() as i32)
    }

    #[inline(always)]
    unsafe fn load_i(self, from: *const i32) -> Self::I {
        // SAFETY: the caller's pointer is valid for sixteen `i32`.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, value: Self::I) {
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is what is stored")]
        let bytes = map(value, |value| value as i8);
        // SAFETY: the caller's pointer is valid for sixteen bytes.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(bytes) }
    }

    #[inline(always)]
    unsafe fn load_codes(self, from: *const u8) -> Self::C {
        // SAFETY: the caller's pointer is valid for 64 bytes.
        unsafe { from.cast::<Self::C>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_codes(self, to: *mut u8, codes: Self::C) {
        // SAFETY: the caller's pointer is valid for 64 bytes.
        unsafe { to.cast::<Self::C>().write_unaligned(codes) }
    }

    #[inline(always)]
    fn low_nibbles(self, codes: Self::C) -> Self::C {
        codes.map(|code| code & 15)
    }

    #[inline(always)]
    fn high_nibbles(self, codes: Self::C) -> Self::C {
        codes.map(|code| code >> 4)
    }

    #[inline(always)]
    fn dot(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        dot_lanes(a, codes, quad)
    }

    #[inline(always)]
    fn dot_bytes(self, a: Self::I, codes: Self::C, quad: i32) -> Self::I {
        dot_lanes(a, codes, quad)
    }

    #[inline(always)]
    fn reduce_add_i(self, value: Self::I) -> i32 {
        value.iter().sum()
    }
}
