//! The operations of [`crate::reference`], fast: run-time dispatch over instruction sets, integer dot products on quantised
//! weights, one pinned thread pool.
//!
//! [`Cpu`] is chosen once at start. Operations are fused so that a layer costs five calls (each is one hand-over to the
//! pool): `matmul` normalises or gates its input on the way in and adds to the residual on the way out; `attention`
//! normalises heads, turns, stores and attends.

mod isa;
mod packed;

pub use isa::Isa;
pub use packed::{PackError, PackedMatrix};

use crate::attention::AttentionStep;
use crate::kv::PagePool;
use crate::reference;

/// An instruction set and the threads that use it.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    num_threads: usize,
}

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

impl Cpu {
    /// Starts the pool: `num_threads` threads in all (at least one), the caller's included.
    pub fn new(isa: Isa, num_threads: usize) -> Self {
        Self { isa, num_threads: num_threads.max(1) }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that work on a call.
    pub fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Multiplies one input by each of `outputs`' weights. Every weight has the input's row length as its columns; each `out`
    /// holds one row of `weight.rows()` for each input row.
    pub fn matmul(&self, input: MatmulInput<'_>, outputs: &mut [MatmulOutput<'_>]) {
        let x = match input {
            MatmulInput::Rows(x) => x.to_vec(),
            MatmulInput::RmsNorm { x, weight, epsilon } => {
                let mut out = vec![0.0; x.len()];
                reference::rms_norm(x, weight, epsilon, &mut out);
                out
            }
            MatmulInput::SiluMul { gate, up } => {
                let mut out = vec![0.0; up.len()];
                reference::silu_mul(gate, up, &mut out);
                out
            }
            MatmulInput::GeluTanhMul { gate, up } => {
                let mut out = vec![0.0; up.len()];
                reference::gelu_tanh_mul(gate, up, &mut out);
                out
            }
        };
        for MatmulOutput { weight, out, accumulate } in outputs {
            weight.matmul(&x, out, *accumulate);
        }
    }

    /// One layer's attention of a step; see [`crate::reference::attention`] for the meaning of every argument.
    pub fn attention(
        &self,
        pool: &mut PagePool,
        step: &AttentionStep<'_>,
        query: &mut [f32],
        key: &mut [f32],
        value: &[f32],
        out: &mut [f32],
    ) {
        reference::attention(pool, step, query, key, value, out);
    }

    /// `out = rms_norm(x) · weight`, row by row. Bits as inside [`Self::matmul`].
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        reference::rms_norm(x, weight, epsilon, out);
    }

    /// `residual += rms_norm(x) · weight`, row by row (Gemma's norms after attention and feed-forward).
    pub fn add_rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, residual: &mut [f32]) {
        let mut out = vec![0.0; x.len()];
        reference::rms_norm(x, weight, epsilon, &mut out);
        residual.iter_mut().zip(out).for_each(|(residual, out)| *residual += out);
    }

    /// Rows `tokens` of an embedding table, dequantised exactly and multiplied by `scale`: `out` is `[tokens, columns]`.
    /// Panics if a token is not a row.
    pub fn embed(&self, table: &PackedMatrix, tokens: &[u32], scale: f32, out: &mut [f32]) {
        assert_eq!(out.len(), tokens.len() * table.columns(), "one row for each token");
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.columns())) {
            table.dequantize_row(*token as usize, out);
            out.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// The index of the largest value of each row of `columns`; the lowest index wins a tie, NaN never wins.
    pub fn argmax(&self, x: &[f32], columns: usize) -> Vec<u32> {
        let largest = |row: &[f32]| {
            let mut best = 0;
            for (index, value) in row.iter().enumerate() {
                if *value > row[best] || row[best].is_nan() {
                    best = index;
                }
            }
            u32::try_from(best).expect("a vocabulary fits u32")
        };
        x.chunks_exact(columns).map(largest).collect()
    }
}
