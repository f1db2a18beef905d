//! Matrix multiplication: transform and quantise the input rows, then every weight's strips, shared out among the threads.

mod float;
mod form;
mod integer;
mod output;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::activations::{Activations, QUAD, QuadMut};
use super::elementwise::{Gate, gate_row, rms_norm_row};
use super::isa::Isa;
use super::packed::PackedMatrix;
use super::pool::ThreadPool;
use super::simd::{Kernel, Simd, dispatch};
use form::with_form;
use output::StripOutput;

/// Pieces of a call that each thread takes on average: enough that a thread that is held up leaves little undone, few enough
/// that taking them costs nothing.
const PIECES_A_THREAD: usize = 6;
/// Input elements below which one thread prepares all rows: handing over would cost more than it saves.
const SERIAL_ELEMENTS: usize = 2048;
/// Rows from which tiles beat vectors.
#[cfg(target_arch = "x86_64")]
const MIN_TILE_ROWS: usize = 6;

/// What a matrix multiplication multiplies: `[rows, columns]` activations, possibly transformed on the way in.
#[derive(Debug, Clone, Copy)]
pub enum MatmulInput<'a> {
    /// As they are.
    Rows(&'a [f32]),
    /// RMSNorm of each row.
    RmsNorm {
        /// The rows.
        x: &'a [f32],
        /// `[columns]` weight.
        weight: &'a [f32],
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `silu(gate) · up`, element by element.
    SiluMul {
        /// The gate.
        gate: &'a [f32],
        /// What it gates.
        up: &'a [f32],
    },
    /// `gelu_tanh(gate) · up`, element by element.
    GeluTanhMul {
        /// The gate.
        gate: &'a [f32],
        /// What it gates.
        up: &'a [f32],
    },
}

/// One weight that the input is multiplied by, and where `[rows, weight.rows()]` go.
#[derive(Debug)]
pub struct MatmulOutput<'a> {
    /// The weight.
    pub weight: &'a PackedMatrix,
    /// The result, row-major.
    pub out: &'a mut [f32],
    /// Add to what is there (a residual) instead of replacing it.
    pub accumulate: bool,
}

impl MatmulInput<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Rows(x) | Self::RmsNorm { x, .. } => x.len(),
            Self::SiluMul { up, .. } | Self::GeluTanhMul { up, .. } => up.len(),
        }
    }
}

/// Multiplies `input` by every weight of `outputs`; see [`super::Cpu::matmul`].
pub(super) fn matmul(
    isa: Isa,
    pool: &ThreadPool,
    activations: &mut Activations,
    input: MatmulInput<'_>,
    outputs: &mut [MatmulOutput<'_>],
) {
    let Some(columns) = outputs.first().map(|output| output.weight.columns()) else { return };
    let rows = input.len() / columns;
    if rows == 0 {
        return;
    }
    let quantize = outputs.iter().any(|output| output.weight.layout().form.is_some());
    activations.resize(rows, columns, quantize);
    prepare(isa, pool, activations, input, columns);

    let mut total_strips = 0;
    let weights: Vec<Weight<'_>> = outputs
        .iter_mut()
        .map(|MatmulOutput { weight, out, accumulate }| {
            assert_eq!(weight.columns(), columns, "every weight multiplies the same rows");
            assert_eq!(out.len(), rows * weight.rows(), "an output for each row and weight row");
            let first_strip = total_strips;
            total_strips += weight.num_strips();
            Weight { matrix: weight, first_strip, out: out.as_mut_ptr(), accumulate: *accumulate }
        })
        .collect();
    let activations = &*activations;
    let weights = Weights(&weights);
    let piece_strips = total_strips.div_ceil(pool.num_threads() * PIECES_A_THREAD);
    let next = AtomicUsize::new(0);
    pool.run(&|_| {
        let strips = Strips { isa, weights, activations, next: &next, piece_strips, total_strips };
        dispatch(isa, strips);
    });
}

/// Fills the activations: each row transformed and quantised by itself, four rows a turn.
fn prepare(
    isa: Isa,
    pool: &ThreadPool,
    activations: &mut Activations,
    input: MatmulInput<'_>,
    columns: usize,
) {
    if input.len() <= SERIAL_ELEMENTS {
        for (quad, rows) in activations.quads_mut().enumerate() {
            dispatch(isa, PrepareQuad { input, quad, columns, rows });
        }
        return;
    }
    let quads = Mutex::new(activations.quads_mut().enumerate());
    pool.run(&|_| {
        loop {
            // Not a `while let`: its scrutinee would hold the lock through the body.
            let next = quads.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((quad, rows)) = next else { return };
            dispatch(isa, PrepareQuad { input, quad, columns, rows });
        }
    });
}

struct PrepareQuad<'a> {
    input: MatmulInput<'a>,
    quad: usize,
    columns: usize,
    rows: QuadMut<'a>,
}

impl Kernel for PrepareQuad<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for row in 0..self.rows.rows() {
            let start = (self.quad * QUAD + row) * self.columns;
            let range = start..start + self.columns;
            let out = self.rows.values(row);
            match self.input {
                MatmulInput::Rows(x) => out.copy_from_slice(&x[range]),
                MatmulInput::RmsNorm { x, weight, epsilon } => {
                    rms_norm_row(s, &x[range], weight, epsilon, out)
                }
                MatmulInput::SiluMul { gate, up } => {
                    gate_row(s, Gate::Silu, &gate[range.clone()], &up[range], out);
                }
                MatmulInput::GeluTanhMul { gate, up } => {
                    gate_row(s, Gate::GeluTanh, &gate[range.clone()], &up[range], out);
                }
            }
            self.rows.quantize(s, row);
        }
    }
}

/// One weight of a call.
struct Weight<'a> {
    matrix: &'a PackedMatrix,
    /// Number of its first strip in the call.
    first_strip: usize,
    out: *mut f32,
    accumulate: bool,
}

/// The weights of a call, shared among its threads.
#[derive(Clone, Copy)]
struct Weights<'a>(&'a [Weight<'a>]);

// SAFETY: threads write through `out` only in the columns of strips they took from the shared counter, each strip once.
unsafe impl Send for Weights<'_> {}
// SAFETY: as above.
unsafe impl Sync for Weights<'_> {}

/// One thread's share of a call: pieces of consecutive strips, taken until there are none.
struct Strips<'a> {
    isa: Isa,
    weights: Weights<'a>,
    activations: &'a Activations,
    next: &'a AtomicUsize,
    piece_strips: usize,
    total_strips: usize,
}

impl Kernel for Strips<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tiles = TileState::new(self.isa, self.activations.quantized().rows);
        loop {
            let first = self.next.fetch_add(self.piece_strips, Ordering::Relaxed);
            if first >= self.total_strips {
                return;
            }
            let end = self.total_strips.min(first + self.piece_strips);
            for weight in self.weights.0 {
                let own = weight.first_strip..weight.first_strip + weight.matrix.num_strips();
                for strip in first.max(own.start)..end.min(own.end) {
                    self.strip(s, &tiles, weight, strip - own.start);
                }
            }
        }
    }
}

impl Strips<'_> {
    #[inline(always)]
    fn strip<S: Simd>(&self, s: S, tiles: &TileState, weight: &Weight<'_>, strip: usize) {
        let matrix = weight.matrix;
        let (layout, x) = (matrix.layout(), self.activations.quantized());
        // SAFETY: `matmul` checked that the output holds every row, and the shared counter gave this strip to this thread only.
        let out = unsafe { StripOutput::new(weight.out, x.rows, matrix.rows(), strip, weight.accumulate) };
        let bytes = matrix.strip(strip);
        if layout.form.is_none() {
            float::strip(s, matrix.ggml_type(), bytes, self.activations.values(), x.columns, out);
            return;
        }
        with_form!(matrix.ggml_type(), T => {
            let done = tiles.strip::<S, T>(s, bytes, layout, x, out);
            integer::strip::<S, T>(s, bytes, layout, x, (done, x.rows), out);
        });
    }
}

/// The tiles of a thread during a call, where there are any.
struct TileState {
    #[cfg(target_arch = "x86_64")]
    tiles: Option<super::amx::Tiles>,
}

#[cfg(target_arch = "x86_64")]
impl TileState {
    fn new(isa: Isa, rows: usize) -> Self {
        let wanted = isa == Isa::AmxInt8 && rows >= MIN_TILE_ROWS && super::amx::permitted();
        // SAFETY: tiles are permitted, checked just before; sixteen rows are a valid configuration.
        Self { tiles: wanted.then(|| unsafe { super::amx::Tiles::configure(16) }) }
    }

    /// Multiplies as many leading rows as tiles are good for and returns how many.
    #[inline(always)]
    fn strip<S: Simd, T: form::Form>(
        &self,
        s: S,
        bytes: &[u8],
        layout: super::packed::StripLayout,
        x: super::activations::QuantizedRows<'_>,
        out: StripOutput,
    ) -> usize {
        if !S::GOES_WITH_TILES || T::SUBS != 1 {
            return 0;
        }
        let Some(tiles) = &self.tiles else { return 0 };
        let rest = x.rows % super::activations::GROUP;
        let rows = if rest < MIN_TILE_ROWS { x.rows - rest } else { x.rows };
        tiles::strip::<S, T>(s, tiles, bytes, layout, x, (0, rows), out);
        rows
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl TileState {
    fn new(_isa: Isa, _rows: usize) -> Self {
        Self {}
    }

    #[inline(always)]
    fn strip<S: Simd, T: form::Form>(
        &self,
        _s: S,
        _bytes: &[u8],
        _layout: super::packed::StripLayout,
        _x: super::activations::QuantizedRows<'_>,
        _out: StripOutput,
    ) -> usize {
        0
    }
}

#[cfg(test)]
mod tests;
