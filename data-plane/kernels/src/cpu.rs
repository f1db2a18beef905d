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
    /// holds one row of `weight.rows()` for each input row. Where a
    /// weight is quantised the input is rounded to sixteen bits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{GgmlType, dequantize};
    use crate::reference;
    use crate::test_data::{Random, blocks};

    #[test]
    fn norms_are_the_references_on_odd_rows() {
        let mut random = Random(11);
        for columns in [1, 16, 45, 576] {
            let (x, weight) = (random.floats(3 * columns), random.floats(columns));
            let residual = random.floats(3 * columns);
            let mut expected = vec![0.0; 3 * columns];
            reference::rms_norm(&x, &weight, 1e-5, &mut expected);
            let mut bits = Vec::new();
            for isa in Isa::available() {
                let cpu = Cpu::new(isa, 1);
                let (mut normed, mut added) = (vec![0.0; 3 * columns], residual.clone());
                cpu.rms_norm(&x, &weight, 1e-5, &mut normed);
                cpu.add_rms_norm(&x, &weight, 1e-5, &mut added);
                for (i, expected) in expected.iter().enumerate() {
                    assert!((normed[i] - expected).abs() < 1e-5, "{isa:?} {columns}");
                    assert_eq!(added[i], residual[i] + normed[i], "{isa:?} {columns}");
                }
                bits.push(normed);
            }
            assert!(bits.iter().all(|normed| *normed == bits[0]), "{columns}");
        }
    }

    #[test]
    fn embeddings_are_exact_rows() {
        let bytes = blocks(GgmlType::Q8_0, 2 * 20, 1);
        let mut plain = vec![0.0; 64 * 20];
        dequantize(GgmlType::Q8_0, &bytes, &mut plain).unwrap();
        let table = PackedMatrix::pack(GgmlType::Q8_0, &bytes, 20, 64).unwrap();
        let mut out = vec![0.0; 3 * 64];
        Cpu::new(Isa::detect(), 1).embed(&table, &[19, 0, 7], 2.0, &mut out);
        for (token, out) in [19, 0, 7].into_iter().zip(out.chunks_exact(64)) {
            assert!(out.iter().zip(&plain[token * 64..]).all(|(out, plain)| *out == 2.0 * plain));
        }
    }

    #[test]
    #[should_panic(expected = "a weight for each column")]
    fn a_norm_of_another_length_is_a_bug() {
        let bytes = blocks(GgmlType::F32, 64, 1);
        let weight = PackedMatrix::pack(GgmlType::F32, &bytes, 4, 16).unwrap();
        let input = MatmulInput::RmsNorm { x: &[1.0; 16], weight: &[1.0; 15], epsilon: 0.0 };
        let out = &mut [0.0; 4];
        Cpu::new(Isa::detect(), 1)
            .matmul(input, &mut [MatmulOutput { weight: &weight, out, accumulate: false }]);
    }
}
