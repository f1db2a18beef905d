//! The operations of [`crate::reference`], fast: run-time dispatch over instruction sets, integer dot products on quantised
//! weights, one pinned thread pool.
//!
//! [`Cpu`] is chosen once at start. Operations are fused so that a layer costs five calls: `matmul` normalises or gates its
//! input on the way in and adds to the residual on the way out; `attention` normalises heads, turns, stores and attends.

mod activations;
mod amx;
mod attention;
mod elementwise;
mod isa;
mod matmul;
mod packed;
mod pool;
mod simd;
mod unroll;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use isa::Isa;
pub use matmul::{MatmulInput, MatmulOutput};
pub use packed::{PackError, PackedMatrix};
pub use pool::ThreadPool;

use crate::attention::AttentionStep;
use crate::kv::PagePool;
use activations::Activations;
use simd::{Kernel, Simd, dispatch};

/// An instruction set and the threads that use it. One call runs at a time.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    pool: ThreadPool,
    activations: Mutex<Activations>,
    attention: Mutex<attention::Scratch>,
}

impl Cpu {
    /// Starts the pool: `num_threads` threads in all (at least one), the caller's included.
    pub fn new(isa: Isa, num_threads: usize) -> Self {
        Self {
            isa,
            pool: ThreadPool::new(num_threads),
            activations: Mutex::default(),
            attention: Mutex::default(),
        }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that work on a call.
    pub fn num_threads(&self) -> usize {
        self.pool.num_threads()
    }

    /// Multiplies one input by each of `outputs`' weights. Every weight has the input's row length as its columns; each `out`
    /// holds one row of `weight.rows()` for each input row.
    pub fn matmul(&self, input: MatmulInput<'_>, outputs: &mut [MatmulOutput<'_>]) {
        matmul::matmul(self.isa, &self.pool, &mut held(&self.activations), input, outputs);
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
        let scratch = &mut held(&self.attention);
        attention::attention(self.isa, &self.pool, scratch, pool, step, query, key, value, out);
    }

    /// `out = rms_norm(x) · weight`, row by row. Bits as inside [`Self::matmul`].
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "one length");
        dispatch(self.isa, RmsNormRows { x, weight, epsilon, out, add: false });
    }

    /// `residual += rms_norm(x) · weight`, row by row (Gemma's norms after attention and feed-forward).
    pub fn add_rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, residual: &mut [f32]) {
        assert_eq!(x.len(), residual.len(), "one length");
        dispatch(self.isa, RmsNormRows { x, weight, epsilon, out: residual, add: true });
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

/// The lock, whether or not a panic passed through an earlier holder: every call overwrites what it guards.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct RmsNormRows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
    add: bool,
}

impl Kernel for RmsNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let columns = self.weight.len();
        for (x, out) in self.x.chunks_exact(columns).zip(self.out.chunks_exact_mut(columns)) {
            if self.add {
                elementwise::add_rms_norm_row(s, x, self.weight, self.epsilon, out);
            } else {
                elementwise::rms_norm_row(s, x, self.weight, self.epsilon, out);
            }
        }
    }
}
