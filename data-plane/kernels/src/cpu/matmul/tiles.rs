//! The same integer dot products by AMX tiles, for groups of up to sixteen rows.
//!
//! A tile product covers one block of 32 inputs, because scales change with every block; its sixteen-by-sixteen sums go through
//! a kilobyte of cache to the vector unit, which scales and adds them in exactly the order of the vector kernel. Stored data is
//! not forwarded to tile loads, nor stored tiles to vector loads: both must reach the cache first. So codes are unpacked
//! [`UNPACKED_AHEAD`] blocks before they are scaled and multiplied [`MULTIPLIED_AHEAD`] blocks before, through small rings
//! that never leave the first cache level.

use std::mem::MaybeUninit;

use super::form::Form;
use super::integer::{load_block, load_scales, prefetch_next_strip, zero_share};
use super::output::StripOutput;
use crate::cpu::activations::{Block, GROUP, QUAD, QuantizedRows};
use crate::cpu::amx::Tiles;
use crate::cpu::packed::{BLOCK, StripLayout};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::unroll::for_each_row;

/// Bytes of a block's codes as a weight tile.
const TILE_BYTES: usize = LANES * BLOCK;
/// How far multiplication runs ahead of scaling, and unpacking ahead of both, in blocks (measured: less waits, more spills).
const MULTIPLIED_AHEAD: usize = 4;
const UNPACKED_AHEAD: usize = 8;
/// Slots of the rings: powers of two above the distances.
const SUMS: usize = 8;
const WEIGHTS: usize = 16;

/// Sums of tile products, and unpacked weight tiles, in turns.
#[repr(C, align(64))]
struct Rings {
    sums: [[i32; GROUP * LANES]; SUMS],
    weights: [[u8; TILE_BYTES]; WEIGHTS],
}

/// One strip by the rows `from..to` of one group.
#[inline(always)]
pub(super) fn strip<S: Simd, T: Form>(
    s: S,
    tiles: &Tiles,
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
    assert!(from.is_multiple_of(GROUP) && to <= x.rows && to - from <= GROUP);
    let mut rings = MaybeUninit::<Rings>::uninit();
    let group = Group { tiles, strip, layout, x: x.group(from / GROUP), rings: rings.as_mut_ptr() };
    // SAFETY: the strip holds as many blocks as the group, asserted above.
    unsafe {
        if to - from > 8 {
            group.multiply::<S, T, 16>(s, (from, to), out);
        } else {
            group.multiply::<S, T, 8>(s, (from, to), out);
        }
    }
}

/// Sixteen rows and a strip.
#[derive(Clone, Copy)]
struct Group<'a> {
    tiles: &'a Tiles,
    strip: &'a [u8],
    layout: StripLayout,
    x: &'a [Block],
    rings: *mut Rings,
}

impl Group<'_> {
    /// Rows from `row` of the result on, of which those below `to` (at most `R`) are kept.
    ///
    /// # Safety
    /// The strip holds a block of form `T` for each of `x`; `rings` is valid.
    #[inline(always)]
    unsafe fn multiply<S: Simd, T: Form, const R: usize>(
        self,
        s: S,
        (row, to): (usize, usize),
        out: StripOutput,
    ) {
        let blocks = self.x.len();
        let mut sums = [s.splat(0.0); R];
        // SAFETY: every index is below `blocks`; a ring's slot is written before it is read and again only after.
        unsafe {
            for index in 0..UNPACKED_AHEAD.min(blocks) {
                self.unpack::<S, T>(s, index);
            }
            for index in 0..MULTIPLIED_AHEAD.min(blocks) {
                self.start::<T>(index);
            }
        }
        for index in 0..blocks {
            if row == 0 {
                prefetch_next_strip::<S, T>(s, self.strip, self.layout, index);
            }
            // SAFETY: as above.
            unsafe {
                if index + UNPACKED_AHEAD < blocks {
                    self.unpack::<S, T>(s, index + UNPACKED_AHEAD);
                }
                if index + MULTIPLIED_AHEAD < blocks {
                    self.start::<T>(index + MULTIPLIED_AHEAD);
                }
                let products = (&raw const (*self.rings).sums[index % SUMS]).cast::<i32>();
                let block = self.x.get_unchecked(index);
                let scale = load_scales::<S, T>(s, self.strip.as_ptr(), index);
                let minimum = if T::FORM.has_minimum {
                    load_scales::<S, T>(s, self.strip.as_ptr().add(self.layout.scales_bytes), index)
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
        out.put_planes(s, row, &sums[..to - row]);
    }

    /// The packed codes of a block.
    ///
    /// # Safety
    /// The strip holds the block.
    #[inline(always)]
    unsafe fn codes<T: Form>(self, index: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { self.strip.as_ptr().add(self.layout.codes_offset + index * T::BLOCK_BYTES) }
    }

    /// Unpacks a block's four-bit codes into the ring; eight-bit codes are tiles as they are.
    ///
    /// # Safety
    /// The strip holds the block, and its slot of the ring is free.
    #[inline(always)]
    unsafe fn unpack<S: Simd, T: Form>(self, s: S, index: usize) {
        if !T::FOUR_BITS {
            return;
        }
        // SAFETY: the caller's promise; eight groups of 64 bytes are a tile.
        unsafe {
            let tile = (&raw mut (*self.rings).weights[index % WEIGHTS]).cast::<u8>();
            let unpacked = load_block::<S, T>(s, self.codes::<T>(index));
            for (group, codes) in unpacked.into_iter().enumerate() {
                s.store_codes(tile.add(group * 64), codes);
            }
        }
    }

    /// Starts the tile product of a block.
    ///
    /// # Safety
    /// `x` and the strip hold the block, it is unpacked if it must be, and its slot of the sums is free.
    #[inline(always)]
    unsafe fn start<T: Form>(self, index: usize) {
        // SAFETY: the block's sixteen activation rows and its weight tile are there (the caller's promise).
        unsafe {
            let weights = if T::FOUR_BITS {
                (&raw const (*self.rings).weights[index % WEIGHTS]).cast()
            } else {
                self.codes::<T>(index)
            };
            let sums = (&raw mut (*self.rings).sums[index % SUMS]).cast();
            self.tiles.multiply(self.x.get_unchecked(index).codes.as_ptr().cast(), weights, sums);
        }
    }
}
