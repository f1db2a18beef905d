//! Where a strip's sums go.

use crate::cpu::activations::PLANES;
use crate::cpu::simd::{LANES, Simd};

/// Columns `first_column..first_column + lanes` of a row-major `[rows, row_len]` result.
#[derive(Debug, Clone, Copy)]
pub(super) struct StripOutput {
    base: *mut f32,
    rows: usize,
    row_len: usize,
    first_column: usize,
    lanes: usize,
    accumulate: bool,
}

impl StripOutput {
    /// The columns of strip `strip` of a result of `row_len` columns.
    ///
    /// # Safety
    /// `base` is valid for writing `rows · row_len` values while this exists, and nobody else touches the strip's columns.
    pub(super) unsafe fn new(
        base: *mut f32,
        rows: usize,
        row_len: usize,
        strip: usize,
        accumulate: bool,
    ) -> Self {
        let first_column = strip * LANES;
        assert!(first_column < row_len, "strip {strip} of {row_len} outputs");
        Self { base, rows, row_len, first_column, lanes: LANES.min(row_len - first_column), accumulate }
    }

    /// Stores (or adds) the sums of consecutive rows of codes from `first` on; the planes of a row add up.
    #[inline(always)]
    pub(super) fn put_planes<S: Simd>(self, s: S, first: usize, sums: &[S::F]) {
        assert!(first.is_multiple_of(PLANES));
        let (rows, _) = sums.as_chunks::<PLANES>();
        for (row, [coarse, fine]) in rows.iter().enumerate() {
            self.put(s, first / PLANES + row, s.add(*coarse, *fine));
        }
    }

    /// Stores (or adds) a row's sums; lanes past the last output are dropped.
    #[inline(always)]
    pub(super) fn put<S: Simd>(self, s: S, row: usize, sums: S::F) {
        assert!(row < self.rows);
        // SAFETY: row and columns are inside the result, which is ours to write (`new`'s contract).
        unsafe {
            let at = self.base.add(row * self.row_len + self.first_column);
            if self.lanes == LANES {
                let sums = if self.accumulate { s.add(s.load(at), sums) } else { sums };
                s.store(at, sums);
            } else {
                let sums = s.to_array(sums);
                for (lane, sum) in sums.iter().enumerate().take(self.lanes) {
                    let at = at.add(lane);
                    at.write(if self.accumulate { at.read() + sum } else { *sum });
                }
            }
        }
    }
}
