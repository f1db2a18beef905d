//! Integer dot products of one strip of sixteen outputs by groups of rows, in vector registers.
//!
//! For each row and lane: `sum = Σ_blocks fma(scale·scale_x, Σ codes·codes_x, ·)`, then the minimum's share of the same block.
//! The order is block after block, whatever the number of rows; the tile kernel keeps the same one.
#![expect(clippy::needless_range_loop, reason = "index loops over constants are unrolled into registers")]

use super::form::Form;
use super::output::StripOutput;
use crate::cpu::activations::{Block, GROUP, PLANES, QUAD, QuantizedRows, Side};
use crate::cpu::packed::{BLOCK, StripLayout};
use crate::cpu::simd::Simd;
use crate::cpu::unroll::for_each_row;

/// One strip by rows `from..to`.
#[inline(always)]
pub(super) fn strip<S: Simd, T: Form>(
    s: S,
    strip: &[u8],
    layout: StripLayout,
    x: QuantizedRows<'_>,
    (from, to): (usize, usize),
    out: StripOutput,
) {
    let blocks = x.columns / BLOCK;
    assert!(
        strip.len() == layout.strip_bytes && layout.codes_offset + blocks * T::BLOCK_BYTES <= strip.len()
    );
    assert!((from == to || from.is_multiple_of(QUAD)) && to <= x.rows);
    let mut row = from;
    while row < to {
        let group = x.group(row / GROUP);
        let at = row % GROUP;
        let left = (to - row).min(GROUP - at);
        // SAFETY: the strip holds every block, asserted above, and the group that many; at most `left` rows from `at` on are
        // inside the group.
        row += unsafe {
            if S::MATMUL_ROWS >= 16 && left >= 16 {
                rows::<S, T, 16>(s, strip, layout, group, (at, row), out)
            } else if S::MATMUL_ROWS >= 4 && left >= 4 {
                rows::<S, T, 4>(s, strip, layout, group, (at, row), out)
            } else {
                rows::<S, T, PLANES>(s, strip, layout, group, (at, row), out)
            }
        };
    }
}

/// `R` rows of codes from row `at` of a group on, which is row `row` of all; returns `R`.
///
/// # Safety
/// The strip holds `group.len()` blocks of form `T` laid out by `layout`; `at + R` is at most 16.
#[inline(always)]
unsafe fn rows<S: Simd, T: Form, const R: usize>(
    s: S,
    strip: &[u8],
    layout: StripLayout,
    group: &[Block],
    (at, row): (usize, usize),
    out: StripOutput,
) -> usize {
    let mut sums = [s.splat(0.0); R];
    for (index, block) in group.iter().enumerate() {
        if row == 0 {
            prefetch_next_strip::<S, T>(s, strip, layout, index);
        }
        // SAFETY: block `index` of the strip exists, and rows `at..at + R` of the group's (the caller's promise).
        unsafe {
            let codes =
                load_block::<S, T>(s, strip.as_ptr().add(layout.codes_offset + index * T::BLOCK_BYTES));
            let mut scales = [s.splat(0.0); 2];
            for sub in 0..T::SUBS {
                scales[sub] = load_scales::<S, T>(s, strip.as_ptr(), index * T::SUBS + sub);
            }
            let minimum = if T::FORM.has_minimum {
                load_scales::<S, T>(s, strip.as_ptr().add(layout.scales_bytes), index)
            } else {
                s.splat(0.0)
            };
            for_each_row!(r in 0..R {
                let quads = block.codes.as_ptr().add(at + r).cast::<i32>();
                let side = &*block.sides.as_ptr().add((at + r) / QUAD);
                let scale_x = s.splat(side.scale[(at + r) % QUAD]);
                let groups = 8 / T::SUBS;
                for sub in 0..T::SUBS {
                    let mut dot = initial_dot::<S, T>(s, side, (at + r) % QUAD, sub);
                    for group in sub * groups..(sub + 1) * groups {
                        let quad = quads.add(group).read();
                        dot = if T::EIGHT_BITS {
                            s.dot_bytes(dot, codes[group], quad)
                        } else {
                            s.dot(dot, codes[group], quad)
                        };
                    }
                    sums[r] = s.fma(s.to_float(dot), s.mul(scales[sub], scale_x), sums[r]);
                }
                if T::FORM.has_minimum {
                    sums[r] = s.fma(minimum, s.splat(side.scaled_sum[(at + r) % QUAD]), sums[r]);
                }
            });
        }
    }
    out.put_planes(s, row, &sums);
    R
}

/// Hints at the same block of the following strip, which is what this thread usually reads next: hardware prefetching alone
/// stops at every 4 KiB.
#[inline(always)]
pub(super) fn prefetch_next_strip<S: Simd, T: Form>(s: S, strip: &[u8], layout: StripLayout, index: usize) {
    let next = strip.as_ptr().wrapping_add(layout.strip_bytes);
    s.prefetch(next.wrapping_add(index * T::SUBS * T::SCALES_BYTES));
    if T::FORM.has_minimum {
        s.prefetch(next.wrapping_add(layout.scales_bytes + index * T::SCALES_BYTES));
    }
    let codes = next.wrapping_add(layout.codes_offset + index * T::BLOCK_BYTES);
    let mut line = 0;
    while line < T::BLOCK_BYTES {
        s.prefetch(codes.wrapping_add(line));
        line += 64;
    }
}

/// What a dot product starts from: minus the zero point's share.
#[inline(always)]
fn initial_dot<S: Simd, T: Form>(s: S, side: &Side, row: usize, sub: usize) -> S::I {
    let subtracted_by_dot = S::BYTES_ARE_BIASED && T::EIGHT_BITS;
    if T::ZERO_BITS == 0 || subtracted_by_dot {
        return s.splat_i(0);
    }
    let negated_sum = match (T::SUBS, sub) {
        (1, _) => side.negated_sum[row],
        (_, 0) => side.negated_half_sum[row],
        (_, _) => side.negated_sum[row].wrapping_sub(side.negated_half_sum[row]),
    };
    zero_share::<S, T>(s, negated_sum)
}

/// `zero_point · negated_sum` in every lane.
#[inline(always)]
pub(super) fn zero_share<S: Simd, T: Form>(s: S, negated_sum: i32) -> S::I {
    let negated_sum = s.splat_i(negated_sum);
    match T::ZERO_BITS {
        3 => s.shift_left::<3>(negated_sum),
        4 => s.shift_left::<4>(negated_sum),
        5 => s.shift_left::<5>(negated_sum),
        _ => s.shift_left::<7>(negated_sum),
    }
}

/// The codes of a block, a byte each: eight groups of sixteen outputs by four inputs.
///
/// # Safety
/// Valid for reading a block of form `T`.
#[inline(always)]
pub(super) unsafe fn load_block<S: Simd, T: Form>(s: S, from: *const u8) -> [S::C; 8] {
    // SAFETY: 256 bytes of four-bit codes or 512 of eight-bit codes (the caller's promise).
    unsafe {
        if T::FOUR_BITS {
            let packed = [
                s.load_codes(from),
                s.load_codes(from.add(64)),
                s.load_codes(from.add(128)),
                s.load_codes(from.add(192)),
            ];
            [
                s.low_nibbles(packed[0]),
                s.low_nibbles(packed[1]),
                s.low_nibbles(packed[2]),
                s.low_nibbles(packed[3]),
                s.high_nibbles(packed[0]),
                s.high_nibbles(packed[1]),
                s.high_nibbles(packed[2]),
                s.high_nibbles(packed[3]),
            ]
        } else {
            [
                s.load_codes(from),
                s.load_codes(from.add(64)),
                s.load_codes(from.add(128)),
                s.load_codes(from.add(192)),
                s.load_codes(from.add(256)),
                s.load_codes(from.add(320)),
                s.load_codes(from.add(384)),
                s.load_codes(from.add(448)),
            ]
        }
    }
}

/// Sixteen scales (or minimums).
///
/// # Safety
/// Sub-block `sub` of the section at `section` exists.
#[inline(always)]
pub(super) unsafe fn load_scales<S: Simd, T: Form>(s: S, section: *const u8, sub: usize) -> S::F {
    // SAFETY: the section holds `SCALES_BYTES` for each sub-block (the caller's promise).
    unsafe {
        let at = section.add(sub * T::SCALES_BYTES);
        if T::FORM.half_scales { s.load_half(at.cast()) } else { s.load(at.cast()) }
    }
}
