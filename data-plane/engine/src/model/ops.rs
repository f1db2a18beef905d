//! The few operations of a forward pass, and the two sets of kernels that provide them.

use std::fmt::Debug;

use weir_kernels::attention::AttentionStep;
use weir_kernels::cpu::{Cpu, Isa, MatmulInput, MatmulOutput, PackedMatrix};
use weir_kernels::kv::{KvType, PagePool};
use weir_kernels::quant::{GgmlType, dequantize};
use weir_kernels::reference;

/// A weight to multiply by, and where the product goes.
#[derive(Debug)]
pub struct Projection<'a, M> {
    /// The weight.
    pub weight: &'a M,
    /// `[rows, weight's rows]`.
    pub out: &'a mut [f32],
    /// Add to what is there (the residual stream) instead of replacing it.
    pub accumulate: bool,
}

/// Brings matrices of a file into the form that some kernels read.
pub trait MatrixLoader {
    /// A weight in that form.
    type Matrix: Debug + Send;

    /// Brings `rows` rows of `columns` into that form; the reason if these kernels cannot.
    ///
    /// # Errors
    /// The kernels' own words.
    fn matrix(
        &self,
        ggml_type: GgmlType,
        bytes: &[u8],
        rows: usize,
        columns: usize,
    ) -> Result<Self::Matrix, String>;
}

/// One set of kernels. Activations are row-major `[rows, columns]` of `f32`; lengths that do not fit together are bugs
/// and panic. A row's result has the same bits whatever other rows are in the call.
pub trait Ops: MatrixLoader + Send {
    /// How keys and values are kept.
    const KV_TYPE: KvType;

    /// Rows `tokens` of an embedding table, exactly.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut [f32]);

    /// Multiplies one input, transformed on the way in, by each of the weights.
    fn project<const N: usize>(&self, input: MatmulInput<'_>, projections: [Projection<'_, Self::Matrix>; N]);

    /// One layer's attention: turns queries and keys, stores keys and values in their pages, attends.
    fn attention(
        &self,
        pool: &mut PagePool,
        step: &AttentionStep<'_>,
        query: &mut [f32],
        key: &mut [f32],
        value: &[f32],
        out: &mut [f32],
    );
}

/// The fast kernels: integer dot products on quantised weights, on a pinned thread pool.
#[derive(Debug)]
pub struct CpuOps {
    cpu: Cpu,
}

impl CpuOps {
    /// Starts the thread pool: `num_threads` in all, the caller's included.
    pub fn new(isa: Isa, num_threads: usize) -> Self {
        Self { cpu: Cpu::new(isa, num_threads) }
    }

    /// The instruction set in use, for logs and fingerprints.
    pub fn isa(&self) -> Isa {
        self.cpu.isa()
    }
}

impl MatrixLoader for CpuOps {
    type Matrix = PackedMatrix;

    fn matrix(
        &self,
        ggml_type: GgmlType,
        bytes: &[u8],
        rows: usize,
        columns: usize,
    ) -> Result<PackedMatrix, String> {
        PackedMatrix::pack(ggml_type, bytes, rows, columns).map_err(|error| error.to_string())
    }
}

impl Ops for CpuOps {
    const KV_TYPE: KvType = KvType::F16;

    fn embed(&self, table: &PackedMatrix, tokens: &[u32], out: &mut [f32]) {
        self.cpu.embed(table, tokens, 1.0, out);
    }

    fn project<const N: usize>(
        &self,
        input: MatmulInput<'_>,
        projections: [Projection<'_, PackedMatrix>; N],
    ) {
        let mut outputs = projections.map(|Projection { weight, out, accumulate }| MatmulOutput {
            weight,
            out,
            accumulate,
        });
        self.cpu.matmul(input, &mut outputs);
    }

    fn attention(
        &self,
        pool: &mut PagePool,
        step: &AttentionStep<'_>,
        query: &mut [f32],
        key: &mut [f32],
        value: &[f32],
        out: &mut [f32],
    ) {
        self.cpu.attention(pool, step, query, key, value, out);
    }
}

/// The definition of correct: dequantised weights, plain single precision. It allocates as it likes; only tests run it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceOps;

/// A dequantised weight.
#[derive(Debug)]
pub struct ReferenceMatrix {
    columns: usize,
    values: Vec<f32>,
}

/// Weight rows multiplied by all inputs before the next ones are read: they stay in a cache of 256 kB.
const WEIGHT_BYTES_AT_ONCE: usize = 128 << 10;

impl MatrixLoader for ReferenceOps {
    type Matrix = ReferenceMatrix;

    fn matrix(
        &self,
        ggml_type: GgmlType,
        bytes: &[u8],
        rows: usize,
        columns: usize,
    ) -> Result<ReferenceMatrix, String> {
        let elements =
            rows.checked_mul(columns).filter(|elements| *elements > 0).ok_or("an impossible shape")?;
        let mut values = vec![0.0; elements];
        dequantize(ggml_type, bytes, &mut values).map_err(|error| error.to_string())?;
        Ok(ReferenceMatrix { columns, values })
    }
}

impl Ops for ReferenceOps {
    const KV_TYPE: KvType = KvType::F32;

    fn embed(&self, table: &ReferenceMatrix, tokens: &[u32], out: &mut [f32]) {
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.columns)) {
            out.copy_from_slice(&table.values[*token as usize * table.columns..][..table.columns]);
        }
    }

    fn project<const N: usize>(
        &self,
        input: MatmulInput<'_>,
        projections: [Projection<'_, ReferenceMatrix>; N],
    ) {
        let input = transformed(input);
        for Projection { weight, out, accumulate } in projections {
            let rows_at_once = WEIGHT_BYTES_AT_ONCE / (4 * weight.columns) + 1;
            let (num_inputs, num_rows) = (input.len() / weight.columns, weight.values.len() / weight.columns);
            let mut product = Vec::new();
            for (chunk, values) in weight.values.chunks(rows_at_once * weight.columns).enumerate() {
                let rows = values.len() / weight.columns;
                product.resize(num_inputs * rows, 0.0);
                reference::matmul(values, weight.columns, &input, &mut product);
                for (out, product) in out.chunks_exact_mut(num_rows).zip(product.chunks_exact(rows)) {
                    for (out, product) in out[chunk * rows_at_once..][..rows].iter_mut().zip(product) {
                        *out = if accumulate { *out + product } else { *product };
                    }
                }
            }
        }
    }

    fn attention(
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
}

fn transformed(input: MatmulInput<'_>) -> Vec<f32> {
    match input {
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
    }
}
