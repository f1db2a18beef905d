//! One thread's share of a matrix multiplication: which strips by which rows, in which order, by which kernel.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::form::{Form, with_form};
use super::output::StripOutput;
use super::{float, integer};
use crate::cpu::activations::{Activations, GROUP, PLANES, QuantizedRows};
use crate::cpu::isa::Isa;
use crate::cpu::packed::{PackedMatrix, StripLayout};
use crate::cpu::simd::{Kernel, Simd};

/// One weight of a call.
pub(super) struct Weight<'a> {
    pub(super) matrix: &'a PackedMatrix,
    /// Number of its first strip in the call.
    pub(super) first_strip: usize,
    pub(super) out: *mut f32,
    pub(super) accumulate: bool,
}

/// The weights of a call, shared among its threads.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a>(pub(super) &'a [Weight<'a>]);

// SAFETY: threads write through `out` only in the columns of strips they took from the shared counter, each strip once.
unsafe impl Send for Weights<'_> {}
// SAFETY: as above.
unsafe impl Sync for Weights<'_> {}

/// Pieces of consecutive strips, taken until there are none.
pub(super) struct Strips<'a> {
    pub(super) isa: Isa,
    pub(super) weights: Weights<'a>,
    pub(super) activations: &'a Activations,
    pub(super) next: &'a AtomicUsize,
    pub(super) piece_strips: usize,
    pub(super) total_strips: usize,
}

impl Kernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.activations.quantized().rows;
        let tiles = Tiles::new(self.isa, rows);
        loop {
            let first = self.next.fetch_add(self.piece_strips, Ordering::Relaxed);
            if first >= self.total_strips {
                return;
            }
            let end = self.total_strips.min(first + self.piece_strips);
            for weight in self.weights.0 {
                let own = weight.first_strip..weight.first_strip + weight.matrix.num_strips();
                // Rows outside, strips inside: a group of rows stays in the first cache level, the piece in the second.
                let mut from = 0;
                while from < rows {
                    let to = rows.min(from + GROUP);
                    for strip in first.max(own.start)..end.min(own.end) {
                        self.strip(s, &tiles, weight, strip - own.start, (from, to));
                    }
                    from = to;
                }
            }
        }
    }
}

impl Strips<'_> {
    /// One strip by the rows `from..to` of one group.
    #[inline(always)]
    fn strip<S: Simd>(
        &self,
        s: S,
        tiles: &Tiles,
        weight: &Weight<'_>,
        strip: usize,
        (from, to): (usize, usize),
    ) {
        let matrix = weight.matrix;
        let (layout, x) = (matrix.layout(), self.activations.quantized());
        // SAFETY: `matmul` checked that the output holds every row, and the shared counter gave this strip to this thread only.
        let out =
            unsafe { StripOutput::new(weight.out, x.rows / PLANES, matrix.rows(), strip, weight.accumulate) };
        let bytes = matrix.strip(strip);
        if layout.form.is_none() {
            // A group's rows of codes are those of whole input rows.
            let rows = (from / PLANES, to / PLANES);
            float::strip(s, matrix.ggml_type(), bytes, self.activations.values(), x.columns, rows, out);
            return;
        }
        with_form!(matrix.ggml_type(), T => {
            if !tiles.strip::<S, T>(s, bytes, layout, x, (from, to), out) {
                integer::strip::<S, T>(s, bytes, layout, x, (from, to), out);
            }
        });
    }
}

/// The tile registers of a thread during a call, where there are any.
struct Tiles {
    #[cfg(target_arch = "x86_64")]
    registers: Option<crate::cpu::amx::Tiles>,
}

#[cfg(target_arch = "x86_64")]
impl Tiles {
    /// Rows of a group from which tiles beat vectors.
    const MIN_ROWS: usize = 6;

    fn new(isa: Isa, rows: usize) -> Self {
        let wanted = isa == Isa::AmxInt8 && rows >= Self::MIN_ROWS && crate::cpu::amx::permitted();
        // SAFETY: tiles are permitted, checked just before; sixteen rows are a valid configuration.
        Self { registers: wanted.then(|| unsafe { crate::cpu::amx::Tiles::configure(16) }) }
    }

    /// Multiplies by tiles if there are any and they are good for it; returns whether.
    #[inline(always)]
    fn strip<S: Simd, T: Form>(
        &self,
        s: S,
        bytes: &[u8],
        layout: StripLayout,
        x: QuantizedRows<'_>,
        (from, to): (usize, usize),
        out: StripOutput,
    ) -> bool {
        if !S::GOES_WITH_TILES || T::SUBS != 1 {
            return false;
        }
        match &self.registers {
            Some(tiles) if to - from >= Self::MIN_ROWS => {
                super::tiles::strip::<S, T>(s, tiles, bytes, layout, x, (from, to), out);
                true
            }
            _ => false,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Tiles {
    fn new(_isa: Isa, _rows: usize) -> Self {
        Self {}
    }

    #[inline(always)]
    fn strip<S: Simd, T: Form>(
        &self,
        _s: S,
        _bytes: &[u8],
        _layout: StripLayout,
        _x: QuantizedRows<'_>,
        _rows: (usize, usize),
        _out: StripOutput,
    ) -> bool {
        false
    }
}
