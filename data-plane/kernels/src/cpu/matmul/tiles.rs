//! The same integer dot products by AMX tiles, for groups of up to sixteen rows.
//!
//! A tile product covers one block of 32 inputs, because scales change with every block; its sixteen-by-sixteen sums go through
//! a kilobyte of cache to the vector unit, which scales and adds them in exactly the order of the vector kernel. The product of
//! the next block runs meanwhile.
#![expect(clippy::needless_range_loop, reason = "index loops over constants are unrolled into registers")]

use super::form::Form;
use super::integer::{load_block, load_scales, zero_share};
use super::output::StripOutput;
use crate::cpu::activations::QuantizedRows;
use crate::cpu::amx::{Tiles, Which};
use crate::cpu::packed::{BLOCK, StripLayout};
use crate::cpu::simd::{LANES, Simd};

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// Bytes of a block's codes as a weight tile.
const TILE_BYTES: usize = LANES * BLOCK;

/// The sums of one tile product.
#[repr(C, align(64))]
struct Sums([i32; TILE_ROWS * LANES]);

/// A strip's codes as weight tiles.
#[derive(Debug, Default)]
pub(super) struct TileScratch(Vec<u8>);

/// One strip by rows `from..to` (the last group may be short). `R` is 8 or 16: the rows of a group that are scaled.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
pub(super) fn strip<S: Simd, T: Form>(
    s: S,
    tiles: &Tiles,
    scratch: &mut TileScratch,
    strip: &[u8],
    layout: StripLayout,
    x: QuantizedRows<'_>,
    (from, to): (usize, usize),
    out: StripOutput,
) {
    assert!(T::SUBS == 1, "a tile product has one scale");
    let blocks = x.columns / BLOCK;
    let padded_rows = x.rows.next_multiple_of(TILE_ROWS);
    assert!(
        strip.len() == layout.strip_bytes && layout.codes_offset + blocks * T::BLOCK_BYTES <= strip.len()
    );
    assert!(from.is_multiple_of(TILE_ROWS) && to <= x.rows && padded_rows * x.columns <= x.codes.len());
    assert!(padded_rows * blocks <= x.scales.len());
    assert!(x.scaled_sums.len() == x.scales.len() && x.negated_sums.len() == x.scales.len());
    // SAFETY: the strip holds `blocks` blocks, asserted above.
    let weights = unsafe { weight_tiles::<S, T>(s, scratch, &strip[layout.codes_offset..], blocks) };
    let mut row = from;
    while row < to {
        // SAFETY: activations and their scales are there for whole groups of sixteen rows, asserted above; `weights` holds
        // `blocks` tiles and the strip its scales.
        unsafe {
            if to - row > 8 {
                group::<S, T, 16>(s, tiles, weights, strip, layout, x, (row, to), out);
            } else {
                group::<S, T, 8>(s, tiles, weights, strip, layout, x, (row, to), out);
            }
        }
        row += TILE_ROWS;
    }
}

/// The strip's codes a byte each; four-bit codes are unpacked into `scratch`.
///
/// # Safety
/// `codes` holds `blocks` blocks of form `T`.
#[inline(always)]
unsafe fn weight_tiles<S: Simd, T: Form>(
    s: S,
    scratch: &mut TileScratch,
    codes: &[u8],
    blocks: usize,
) -> *const u8 {
    if !T::FOUR_BITS {
        return codes.as_ptr();
    }
    if scratch.0.len() < blocks * TILE_BYTES {
        scratch.0.resize(blocks * TILE_BYTES, 0);
    }
    for block in 0..blocks {
        // SAFETY: the block is read inside `codes` (the caller's promise) and written inside the scratch resized above.
        unsafe {
            let unpacked = load_block::<S, T>(s, codes.as_ptr().add(block * T::BLOCK_BYTES));
            for (group, codes) in unpacked.into_iter().enumerate() {
                s.store_codes(scratch.0.as_mut_ptr().add(block * TILE_BYTES + group * 64), codes);
            }
        }
    }
    scratch.0.as_ptr()
}

/// One group of sixteen rows from `row` on, of which those below `to` (at most `R`) are kept.
///
/// # Safety
/// `weights` holds a tile for each block, `strip` the scales laid out by `layout`, and `x` sixteen rows from `row` on.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
unsafe fn group<S: Simd, T: Form, const R: usize>(
    s: S,
    tiles: &Tiles,
    weights: *const u8,
    strip: &[u8],
    layout: StripLayout,
    x: QuantizedRows<'_>,
    (row, to): (usize, usize),
    out: StripOutput,
) {
    let blocks = x.columns / BLOCK;
    let mut buffers = [const { Sums([0; TILE_ROWS * LANES]) }, const { Sums([0; TILE_ROWS * LANES]) }];
    let [first, second] = &mut buffers;
    let buffers = [first.0.as_mut_ptr(), second.0.as_mut_ptr()];
    let mut sums = [s.splat(0.0); R];
    // SAFETY: block 0 of these rows and of the strip exist; a buffer is a kilobyte.
    unsafe { multiply(tiles, x, row, 0, weights, buffers[0]) };
    for block in 0..blocks {
        // SAFETY: `block`, and `block + 1` where it is multiplied, are below `blocks`; the rest as the caller promised.
        unsafe {
            if block + 1 < blocks {
                multiply(tiles, x, row, block + 1, weights, buffers[(block + 1) % 2]);
            }
            let products = buffers[block % 2];
            let scale = load_scales::<S, T>(s, strip.as_ptr(), block);
            let minimum = if T::FORM.has_minimum {
                load_scales::<S, T>(s, strip.as_ptr().add(layout.scales_bytes), block)
            } else {
                scale
            };
            for r in 0..R {
                let side = (row + r) * blocks + block;
                let mut product = s.load_i(products.add(r * LANES));
                if T::ZERO_BITS > 0 {
                    product = s.add_i(product, zero_share::<S, T>(s, *x.negated_sums.as_ptr().add(side)));
                }
                let scale_x = s.splat(*x.scales.as_ptr().add(side));
                sums[r] = s.fma(s.to_float(product), s.mul(scale, scale_x), sums[r]);
                if T::FORM.has_minimum {
                    sums[r] = s.fma(minimum, s.splat(*x.scaled_sums.as_ptr().add(side)), sums[r]);
                }
            }
        }
    }
    for (r, sum) in sums.into_iter().enumerate().take(to - row) {
        out.put(s, row + r, sum);
    }
}

/// Starts the tile product of one block.
///
/// # Safety
/// As [`group`]; `products` is valid for a tile's sums.
#[inline(always)]
unsafe fn multiply(
    tiles: &Tiles,
    x: QuantizedRows<'_>,
    row: usize,
    block: usize,
    weights: *const u8,
    products: *mut i32,
) {
    let which = if block.is_multiple_of(2) { Which::First } else { Which::Second };
    // SAFETY: sixteen activation rows and the block's weight tile are there (the caller's promise).
    unsafe {
        let activations = x.codes.as_ptr().add(row * x.columns + block * BLOCK);
        tiles.multiply(which, activations, x.columns, weights.add(block * TILE_BYTES), products);
    }
}
