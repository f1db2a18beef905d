//! Sixteen lanes as arrays, in plain Rust.

use super::{LANES, Simd};
use crate::quant::half::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// Every machine has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Generic;

/// `[f(0), f(1), …]` as a loop in place: a closure might not be inlined into code with an instruction set enabled.
macro_rules! lanes {
    ($lane:ident => $value:expr) => {{
        let mut out = [Default::default(); LANES];
        let mut $lane = 0;
        while $lane < LANES {
            out[$lane] = $value;
            $lane += 1;
        }
        out
    }};
}

#[inline(always)]
fn dot_lanes(a: [i32; LANES], codes: [u8; 64], quad: i32) -> [i32; LANES] {
    let [x0, x1, x2, x3] = quad.to_le_bytes();
    let (x0, x1, x2, x3) = (x0.cast_signed(), x1.cast_signed(), x2.cast_signed(), x3.cast_signed());
    lanes!(i => a[i]
        + i32::from(codes[4 * i]) * i32::from(x0)
        + i32::from(codes[4 * i + 1]) * i32::from(x1)
        + i32::from(codes[4 * i + 2]) * i32::from(x2)
        + i32::from(codes[4 * i + 3]) * i32::from(x3))
}

impl Simd for Generic {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type C = [u8; 64];

    const MATMUL_ROWS: usize = 1;
    const QUERIES: usize = 1;
    const GOES_WITH_TILES: bool = false;
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
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f16_to_f32(halves[i]))
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut u16, value: Self::F) {
        let halves: [u16; LANES] = lanes!(i => f32_to_f16(value[i]));
        // SAFETY: the caller's pointer is valid for sixteen `u16`.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(halves) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Self::F {
        // SAFETY: the caller's pointer is valid for sixteen `u16`.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => bf16_to_f32(halves[i]))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => a[i] / b[i])
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        lanes!(i => a[i].abs())
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        lanes!(i => a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn select(self, mask: u16, a: Self::F, b: Self::F) -> Self::F {
        lanes!(i => if mask >> i & 1 == 1 { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn power_of_two(self, exponent: Self::I) -> Self::F {
        lanes!(i => f32::from_bits((exponent[i].wrapping_add(127) << 23).cast_unsigned()))
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        [value; LANES]
    }

    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        lanes!(i => a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: Self::I) -> Self::I {
        lanes!(i => a[i] << BITS)
    }

    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        #[expect(clippy::cast_precision_loss, reason = "rounds as the hardware's conversion does")]
        let floats = lanes!(i => a[i] as f32);
        floats
    }

    #[inline(always)]
    fn round(self, a: Self::F) -> Self::I {
        #[expect(clippy::cast_possible_truncation, reason = "a rounded number inside of i32")]
        let integers = lanes!(i => a[i].round_ties_even() as i32);
        integers
    }

    #[inline(always)]
    unsafe fn load_i(self, from: *const i32) -> Self::I {
        // SAFETY: the caller's pointer is valid for sixteen `i32`.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, value: Self::I) {
        #[expect(clippy::cast_possible_truncation, reason = "the low byte is what is stored")]
        let bytes = lanes!(i => value[i] as i8);
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
        let mut nibbles = codes;
        for code in &mut nibbles {
            *code &= 15;
        }
        nibbles
    }

    #[inline(always)]
    fn high_nibbles(self, codes: Self::C) -> Self::C {
        let mut nibbles = codes;
        for code in &mut nibbles {
            *code >>= 4;
        }
        nibbles
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
        value.into_iter().fold(0, i32::wrapping_add)
    }
}
