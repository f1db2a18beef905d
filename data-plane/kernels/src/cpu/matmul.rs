//! Matrix multiplication: transform and quantise the input rows, then every weight's strips, shared out among the threads.

mod float;
mod form;
mod integer;
mod output;
mod strips;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

use super::activations::{Activations, QUAD, QuadMut};
use super::elementwise::{Gate, gate_row, rms_norm_row};
use super::isa::Isa;
use super::packed::PackedMatrix;
use super::pool::ThreadPool;
use super::simd::{Kernel, Simd, dispatch};
use strips::{Strips, Weight, Weights};

/// Pieces of a call that each thread takes on average: enough that a thread that is held up leaves little undone, few enough
/// that each is a long stream (measured: four cost nothing against one, sixteen a quarter).
const PIECES_A_THREAD: usize = 4;
/// Input elements below which one thread prepares all rows: handing over would cost more than it saves.
const SERIAL_ELEMENTS: usize = 2048;

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

    /// Panics unless these are whole rows of `columns`, and what transforms them fits.
    fn check(&self, columns: usize) {
        assert!(self.len().is_multiple_of(columns), "{} elements are not rows of {columns}", self.len());
        match self {
            Self::Rows(_) => {}
            Self::RmsNorm { weight, .. } => assert_eq!(weight.len(), columns, "a weight for each column"),
            Self::SiluMul { gate, up } | Self::GeluTanhMul { gate, up } => {
                assert_eq!(gate.len(), up.len(), "a gate for each element");
            }
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
    input.check(columns);
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

#[cfg(test)]
mod tests;
