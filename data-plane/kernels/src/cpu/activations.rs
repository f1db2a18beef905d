//! The input side of a matrix multiplication: rows of `f32`, and the same rows in signed bytes with one scale for every 32.
//!
//! A row is quantised alone, so its bytes do not depend on its neighbours. `value ≈ scale · code` with codes −127 ..= 127.

use super::packed::BLOCK;
use super::simd::{LANES, Simd};

/// Rows are allocated in whole groups of this many, so that a tile may read past the last one.
const ROW_GROUP: usize = 16;

/// Input rows in both forms. Memory is kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Activations {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    scaled_sums: Vec<f32>,
    negated_sums: Vec<i32>,
    negated_half_sums: Vec<i32>,
}

/// Read access for kernels, as pointers because tiles read by stride.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    /// `[rows][columns]`, rounded up to whole groups of 16 rows.
    pub(super) codes: &'a [i8],
    /// `[rows][blocks]`.
    pub(super) scales: &'a [f32],
    /// `[rows][blocks]`: scale · Σ codes, what a weight block's minimum is multiplied by.
    pub(super) scaled_sums: &'a [f32],
    /// `[rows][blocks]`: −Σ codes, what a weight's zero point is multiplied by.
    pub(super) negated_sums: &'a [i32],
    /// `[rows][2 · blocks]`: the same for halves of a block.
    pub(super) negated_half_sums: &'a [i32],
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// Write access to one row.
#[derive(Debug)]
pub(super) struct RowMut<'a> {
    pub(super) values: &'a mut [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    scaled_sums: &'a mut [f32],
    negated_sums: &'a mut [i32],
    negated_half_sums: &'a mut [i32],
}

impl Activations {
    /// Makes room for `rows` of `columns`; `quantize` says whether the byte form will be used (columns in whole blocks).
    pub(super) fn resize(&mut self, rows: usize, columns: usize, quantize: bool) {
        assert!(!quantize || columns.is_multiple_of(BLOCK), "quantised weights have whole blocks");
        (self.rows, self.columns) = (rows, columns);
        self.values.resize(rows * columns, 0.0);
        let padded = if quantize { rows.next_multiple_of(ROW_GROUP) } else { 0 };
        let blocks = padded * (columns / BLOCK);
        self.codes.resize(padded * columns, 0);
        self.scales.resize(blocks, 0.0);
        self.scaled_sums.resize(blocks, 0.0);
        self.negated_sums.resize(blocks, 0);
        self.negated_half_sums.resize(2 * blocks, 0);
    }

    /// The rows as they were written.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn quantized(&self) -> QuantizedRows<'_> {
        QuantizedRows {
            codes: &self.codes,
            scales: &self.scales,
            scaled_sums: &self.scaled_sums,
            negated_sums: &self.negated_sums,
            negated_half_sums: &self.negated_half_sums,
            rows: self.rows,
            columns: self.columns,
        }
    }

    /// Each row, writable on its own. Rows that are not quantised have empty byte forms.
    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = RowMut<'_>> {
        let blocks = self.columns / BLOCK;
        let quantized = !self.codes.is_empty();
        let step = |len: usize| if quantized { len } else { 0 };
        let mut codes = self.codes.as_mut_slice();
        let mut scales = self.scales.as_mut_slice();
        let mut scaled_sums = self.scaled_sums.as_mut_slice();
        let mut negated_sums = self.negated_sums.as_mut_slice();
        let mut negated_half_sums = self.negated_half_sums.as_mut_slice();
        let (codes_step, blocks_step) = (step(self.columns), step(blocks));
        self.values.chunks_exact_mut(self.columns).map(move |values| RowMut {
            values,
            codes: take(&mut codes, codes_step),
            scales: take(&mut scales, blocks_step),
            scaled_sums: take(&mut scaled_sums, blocks_step),
            negated_sums: take(&mut negated_sums, blocks_step),
            negated_half_sums: take(&mut negated_half_sums, 2 * blocks_step),
        })
    }
}

/// Splits the first `len` elements off.
fn take<'a, T>(slice: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    slice.split_off_mut(..len).expect("resized for every row")
}

impl RowMut<'_> {
    /// Writes the byte form of `values` (nothing if the row is not quantised).
    #[inline(always)]
    pub(super) fn quantize<S: Simd>(&mut self, s: S) {
        let (vectors, _) = self.values.as_chunks::<LANES>();
        let (codes, _) = self.codes.as_chunks_mut::<LANES>();
        for block in 0..self.scales.len() {
            let (a, b) = (s.array(&vectors[2 * block]), s.array(&vectors[2 * block + 1]));
            let largest = s.reduce_max(s.max(s.abs(a), s.abs(b)));
            let inverse = s.splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
            let (a, b) = (s.round(s.mul(a, inverse)), s.round(s.mul(b, inverse)));
            // SAFETY: each chunk is sixteen bytes.
            unsafe {
                s.store_bytes(codes[2 * block].as_mut_ptr(), a);
                s.store_bytes(codes[2 * block + 1].as_mut_ptr(), b);
            }
            let (a, b) = (s.reduce_add_i(a), s.reduce_add_i(b));
            let scale = largest * (1.0 / 127.0);
            self.scales[block] = scale;
            #[expect(clippy::cast_precision_loss, reason = "at most 32 · 127")]
            let sum = (a.wrapping_add(b)) as f32;
            self.scaled_sums[block] = scale * sum;
            self.negated_half_sums[2 * block] = a.wrapping_neg();
            self.negated_half_sums[2 * block + 1] = b.wrapping_neg();
            self.negated_sums[block] = a.wrapping_add(b).wrapping_neg();
        }
    }
}
