//! The same integer dot products by AMX tiles, for groups of up to sixteen rows.
//!
//! A tile product covers one block of 32 inputs, because scales change with every block; its sixteen-by-sixteen sums go through
//! a kilobyte of cache to the vector unit, which scales and adds them in exactly the order of the vector kernel. The product of
//! the next block runs meanwhile.

use std::mem::MaybeUninit;

use super::form::Form;
use super::integer::{load_block, load_scales, zero_share};
use super::output::StripOutput;
use crate::cpu::activations::{Block, GROUP, QUAD, QuantizedRows};
use crate::cpu::amx::Tiles;
use crate::cpu::packed::{BLOCK, StripLayout};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::unroll::for_each_row;

/// Bytes of a block's codes as a weight tile.
const TILE_BYTES: usize = LANES * BLOCK;

/// Blocks whose products are under way while one is scaled: stored tiles are not forwarded to loads, they must reach the
/// cache first. A power of two less one.
const AHEAD: usize = 3;

/// The sums of one tile product.
#[repr(C, align(64))]
struct Sums([i32; GROUP * LANES]);

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
    assert!(
        strip.len() == layout.strip_bytes && layout.codes_offset + blocks * T::BLOCK_BYTES <= strip.len()
    );
    assert!(from.is_multiple_of(GROUP) && to <= x.rows);
    // SAFETY: the strip holds `blocks` blocks, asserted above.
    let weights = unsafe { weight_tiles::<S, T>(s, scratch, &strip[layout.codes_offset..], blocks) };
    let mut row = from;
    while row < to {
        // SAFETY: `weights` holds a tile for each of the group's blocks, and the strip its scales.
        unsafe {
            if to - row > 8 {
                group::<S, T, 16>(s, tiles, weights, strip, layout, x.group(row / GROUP), (row, to), out);
            } else {
                group::<S, T, 8>(s, tiles, weights, strip, layout, x.group(row / GROUP), (row, to), out);
            }
        }
        row += GROUP;
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

/// One group of sixteen rows, row `row` of the result first, of which those below `to` (at most `R`) are kept.
///
/// # Safety
/// `weights` holds a tile for each block of `x`, `strip` the scales laid out by `layout`.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
unsafe fn group<S: Simd, T: Form, const R: usize>(
    s: S,
    tiles: &Tiles,
    weights: *const u8,
    strip: &[u8],
    layout: StripLayout,
    x: &[Block],
    (row, to): (usize, usize),
    out: StripOutput,
) {
    let mut buffers = MaybeUninit::<[Sums; AHEAD + 1]>::uninit();
    let buffers = buffers.as_mut_ptr().cast::<Sums>();
    let mut sums = [s.splat(0.0); R];
    for block in 0..AHEAD.min(x.len()) {
        // SAFETY: the block exists, and so does its buffer.
        unsafe { multiply(tiles, x, block, weights, buffers.add(block)) };
    }
    for index in 0..x.len() {
        // SAFETY: `index`, and `index + AHEAD` where it is multiplied, are blocks; buffers are used in turns, each written by
        // a product before it is read; the rest as the caller promised.
        unsafe {
            if index + AHEAD < x.len() {
                multiply(tiles, x, index + AHEAD, weights, buffers.add((index + AHEAD) % (AHEAD + 1)));
            }
            let products = buffers.add(index % (AHEAD + 1)).cast::<i32>();
            let block = x.get_unchecked(index);
            let scale = load_scales::<S, T>(s, strip.as_ptr(), index);
            let minimum = if T::FORM.has_minimum {
                load_scales::<S, T>(s, strip.as_ptr().add(layout.scales_bytes), index)
            } else {
                scale
            };
            for_each_row!(r in 0..R {
                let side = &block.sides[r / QUAD];
                let mut product = s.load_i(products.add(r * LANES));
                if T::ZERO_BITS > 0 {
                    product = s.add_i(product, zero_share::<S, T>(s, side.negated_sum[r % QUAD]));
                }
                sums[r] = s.fma(s.to_float(product), s.mul(scale, s.splat(side.scale[r % QUAD])), sums[r]);
                if T::FORM.has_minimum {
                    sums[r] = s.fma(minimum, s.splat(side.scaled_sum[r % QUAD]), sums[r]);
                }
            });
        }
    }
    for (r, sum) in sums.into_iter().enumerate().take(to - row) {
        out.put(s, row + r, sum);
    }
}

/// Starts the tile product of one block.
///
/// # Safety
/// `x` and `weights` hold the block; `products` is valid for a tile's sums.
#[inline(always)]
unsafe fn multiply(tiles: &Tiles, x: &[Block], index: usize, weights: *const u8, products: *mut Sums) {
    // SAFETY: the block's sixteen activation rows and its weight tile are there (the caller's promise).
    unsafe {
        let activations = x.get_unchecked(index).codes.as_ptr().cast();
        tiles.multiply(activations, weights.add(index * TILE_BYTES), products.cast());
    }
}
