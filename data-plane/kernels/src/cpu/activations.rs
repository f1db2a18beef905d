//! The input side of a matrix multiplication: rows of `f32`, and the same rows in signed bytes with one scale for every 32.
//!
//! A row is quantised alone, so its bytes do not depend on its neighbours. `value ≈ scale · code` with codes −127 ..= 127. Eight
//! bits blur too much: measured along the golden texts, the rounding of inputs alone moved logits by up to 0.6. So a row has two
//! planes, which are rows of codes like any other: the second holds what the first one's rounding left, in steps of 1/254 of its
//! scale. Together they are off by at most 1/64516 of the largest of 32 neighbours, logits by 0.01, and no kernel knows about
//! planes until it adds a row's sums up.

use super::packed::BLOCK;
use super::simd::{LANES, Simd};

/// Rows of a [`Block`]; what a tile multiplies at once.
pub(super) const GROUP: usize = 16;
/// Rows that share cache lines; threads prepare whole quads, so that no line has two writers.
pub(super) const QUAD: usize = 4;

/// Rows of codes for each input row.
pub(super) const PLANES: usize = 2;
/// Steps of a row's second plane in one of its first: half a step, the most that is left, is code 127.
const FINE_STEPS: f32 = 254.0;

/// A block whose largest value is not above this is zero: 127 divided by it might not be finite.
const SMALLEST: f32 = 128.0 * f32::MIN_POSITIVE;

/// Input rows in both forms. Memory is kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Activations {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
    blocks: Vec<Block>,
}

/// Thirty-two inputs of sixteen rows: everything a kernel needs of them, in one run of memory.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) codes: [[i8; BLOCK]; GROUP],
    pub(super) sides: [Side; GROUP / QUAD],
}

/// What goes with the codes of four rows: one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Side {
    /// Value of a code's unit.
    pub(super) scale: [f32; QUAD],
    /// scale · Σ codes: what a weight block's minimum is multiplied by.
    pub(super) scaled_sum: [f32; QUAD],
    /// −Σ codes: what a weight's zero point is multiplied by.
    pub(super) negated_sum: [i32; QUAD],
    /// The same for the first half of the block.
    pub(super) negated_half_sum: [i32; QUAD],
}

const EMPTY_SIDE: Side =
    Side { scale: [0.0; QUAD], scaled_sum: [0.0; QUAD], negated_sum: [0; QUAD], negated_half_sum: [0; QUAD] };
const EMPTY: Block = Block { codes: [[0; BLOCK]; GROUP], sides: [EMPTY_SIDE; GROUP / QUAD] };

/// Read access for kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    /// `[rows / 16][columns / 32]`; rows past the last are whatever they were.
    blocks: &'a [Block],
    /// Rows of codes: the planes of an input row are neighbours.
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<'a> QuantizedRows<'a> {
    /// The blocks of rows `16·group ..`, one for each 32 columns.
    #[inline(always)]
    pub(super) fn group(&self, group: usize) -> &'a [Block] {
        let blocks = self.columns / BLOCK;
        &self.blocks[group * blocks..][..blocks]
    }
}

/// Write access to up to four input rows.
pub(super) struct QuadMut<'a> {
    columns: usize,
    values: &'a mut [f32],
    /// The blocks of this quad's group; this quad's parts of them are nobody else's.
    blocks: *mut [Block],
    /// The first of this quad's rows of codes, counted from the group's.
    first: usize,
    lifetime: std::marker::PhantomData<&'a mut Block>,
}

// SAFETY: a quad writes only its own rows' parts of the blocks, which no other quad touches.
unsafe impl Send for QuadMut<'_> {}

/// The first block of all, for handing out quads.
struct Blocks(*mut Block);

// SAFETY: nothing is reached through it but by the quads it is handed to.
unsafe impl Send for Blocks {}

impl Blocks {
    /// # Safety
    /// There are at least `index` blocks.
    unsafe fn at(&self, index: usize) -> *mut Block {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index) }
    }
}

impl Activations {
    /// Makes room for `rows` of `columns`; `quantize` says whether the byte form will be used (columns in whole blocks).
    pub(super) fn resize(&mut self, rows: usize, columns: usize, quantize: bool) {
        assert!(!quantize || columns.is_multiple_of(BLOCK), "quantised weights have whole blocks");
        (self.rows, self.columns) = (rows, columns);
        self.values.resize(rows * columns, 0.0);
        let groups = if quantize { (rows * PLANES).div_ceil(GROUP) } else { 0 };
        self.blocks.resize(groups * (columns / BLOCK), EMPTY);
    }

    /// The rows as they were written.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// The same rows in bytes.
    pub(super) fn quantized(&self) -> QuantizedRows<'_> {
        QuantizedRows { blocks: &self.blocks, rows: self.rows * PLANES, columns: self.columns }
    }

    /// Groups of four rows (the last may be short), each writable on its own.
    pub(super) fn quads_mut(&mut self) -> impl Iterator<Item = QuadMut<'_>> {
        let columns = self.columns;
        let blocks_a_group = if self.blocks.is_empty() { 0 } else { columns / BLOCK };
        let blocks = Blocks(self.blocks.as_mut_ptr());
        self.values.chunks_mut(QUAD * columns).enumerate().map(move |(quad, values)| {
            let row = quad * QUAD * PLANES;
            // SAFETY: `resize` made that many blocks for every group of rows, so the group's are inside the vector.
            let first = unsafe { blocks.at(row / GROUP * blocks_a_group) };
            QuadMut {
                columns,
                values,
                blocks: std::ptr::slice_from_raw_parts_mut(first, blocks_a_group),
                first: row % GROUP,
                lifetime: std::marker::PhantomData,
            }
        })
    }
}

impl QuadMut<'_> {
    /// Rows here.
    pub(super) fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Row `row` of these, to be written.
    #[inline(always)]
    pub(super) fn values(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    /// Writes the byte form of row `row` (nothing if rows are not quantised).
    #[inline(always)]
    pub(super) fn quantize<S: Simd>(&mut self, s: S, row: usize) {
        assert!(row < QUAD);
        let (vectors, _) = self.values[row * self.columns..][..self.columns].as_chunks::<LANES>();
        for block in 0..self.blocks.len() {
            let (a, b) = (s.array(&vectors[2 * block]), s.array(&vectors[2 * block + 1]));
            let largest = s.reduce_max(s.max(s.abs(a), s.abs(b)));
            let inverse = s.splat(if largest > SMALLEST { 127.0 / largest } else { 0.0 });
            let (a, b) = (s.mul(a, inverse), s.mul(b, inverse));
            let coarse = (s.round(a), s.round(b));
            let fine = |x, coarse| s.round(s.mul(s.sub(x, s.to_float(coarse)), s.splat(FINE_STEPS)));
            let fine = (fine(a, coarse.0), fine(b, coarse.1));
            let scale = largest * (1.0 / 127.0);
            // SAFETY: the block is one of this quad's group, and a quad's rows are borrowed exclusively by this value.
            let block = unsafe { self.blocks.cast::<Block>().add(block) };
            let at = self.first + row * PLANES;
            // SAFETY: as above; `at` and the row after it are this quad's.
            unsafe {
                put(s, block, at, coarse, scale);
                put(s, block, at + 1, fine, scale * (1.0 / FINE_STEPS));
            }
        }
    }
}

/// Writes one row of codes of a block.
///
/// # Safety
/// The block is valid, nobody else touches its row `row`, and codes are −127 ..= 127.
#[inline(always)]
unsafe fn put<S: Simd>(s: S, block: *mut Block, row: usize, (a, b): (S::I, S::I), scale: f32) {
    assert!(row < GROUP);
    let half_sum = s.reduce_add_i(a);
    let sum = s.reduce_add_i(s.add_i(a, b));
    #[expect(clippy::cast_precision_loss, reason = "at most 32 · 127")]
    let float_sum = sum as f32;
    // SAFETY: the caller's promise.
    unsafe {
        let codes = (&raw mut (*block).codes[row]).cast::<i8>();
        s.store_bytes(codes, a);
        s.store_bytes(codes.add(LANES), b);
        let side = &raw mut (*block).sides[row / QUAD];
        (*side).scale[row % QUAD] = scale;
        (*side).scaled_sum[row % QUAD] = scale * float_sum;
        (*side).negated_sum[row % QUAD] = sum.wrapping_neg();
        (*side).negated_half_sum[row % QUAD] = half_sum.wrapping_neg();
    }
}
