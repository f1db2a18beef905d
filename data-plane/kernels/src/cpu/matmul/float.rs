//! Floating-point weights: one strip of sixteen outputs by groups of rows.
//!
//! For each row and lane the even and the odd inputs are summed apart, in order, and added at the end: two chains keep the
//! multiplier busy, and two whatever the number of rows.

use super::output::StripOutput;
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::unroll::for_each_row;
use crate::quant::GgmlType;

/// How an element is loaded.
pub(super) trait Element {
    const BYTES: usize;

    /// # Safety
    /// Valid for reading sixteen elements.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F;
}

macro_rules! elements {
    ($($name:ident, $bytes:literal, $load:ident;)*) => {
        $(
            struct $name;

            impl Element for $name {
                const BYTES: usize = $bytes;

                #[inline(always)]
                unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
                    // SAFETY: the caller's promise.
                    unsafe { s.$load(from.cast()) }
                }
            }
        )*
    };
}

elements! {
    F32, 4, load;
    F16, 2, load_half;
    Bf16, 2, load_bf16;
}

/// One strip by the rows `from..to` of `x`, `[rows][columns]`.
#[inline(always)]
pub(super) fn strip<S: Simd>(
    s: S,
    ggml_type: GgmlType,
    strip: &[u8],
    x: &[f32],
    columns: usize,
    rows: (usize, usize),
    out: StripOutput,
) {
    match ggml_type {
        GgmlType::F32 => all_rows::<S, F32>(s, strip, x, columns, rows, out),
        GgmlType::F16 => all_rows::<S, F16>(s, strip, x, columns, rows, out),
        _ => all_rows::<S, Bf16>(s, strip, x, columns, rows, out),
    }
}

#[inline(always)]
fn all_rows<S: Simd, E: Element>(
    s: S,
    strip: &[u8],
    x: &[f32],
    columns: usize,
    (from, to): (usize, usize),
    out: StripOutput,
) {
    assert!(strip.len() == columns * LANES * E::BYTES && to * columns <= x.len());
    let mut row = from;
    while row < to {
        let left = to - row;
        // SAFETY: the strip holds `columns` vectors and `x` the rows, asserted above.
        row += unsafe {
            if S::MATMUL_ROWS >= 4 && left >= 4 {
                rows::<S, E, 4>(s, strip, x, columns, row, out)
            } else {
                rows::<S, E, 1>(s, strip, x, columns, row, out)
            }
        };
    }
}

/// `R` rows from `row` on; returns `R`.
///
/// # Safety
/// The strip holds `columns` vectors, `x` rows `row..row + R` of `columns`.
#[inline(always)]
unsafe fn rows<S: Simd, E: Element, const R: usize>(
    s: S,
    strip: &[u8],
    x: &[f32],
    columns: usize,
    row: usize,
    out: StripOutput,
) -> usize {
    let mut sums = [[s.splat(0.0); 2]; R];
    for input in 0..columns {
        // SAFETY: input `input` of the strip and of rows `row..row + R` exist (the caller's promise).
        unsafe {
            let weight = E::load(s, strip.as_ptr().add(input * LANES * E::BYTES));
            for_each_row!(r in 0..R {
                let value = s.splat(*x.as_ptr().add((row + r) * columns + input));
                sums[r][input % 2] = s.fma(weight, value, sums[r][input % 2]);
            });
        }
    }
    for (r, [even, odd]) in sums.into_iter().enumerate() {
        out.put(s, row + r, s.add(even, odd));
    }
    R
}
