//! Embedding, normalisation, gated activations, the rows that sample, conversions.

use super::formats::ActivationType;
use super::{Formats, Operations, StepInputs, Weight};
use crate::cuda::launch::Kernel;
use crate::cuda::{CudaError, Device, DeviceBuffer};
use crate::quant::GgmlType;

/// The activation of a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

const BLOCK: usize = 256;
/// Elements of a block of the gated activations.
const GATED_COLUMNS: usize = 8 * BLOCK;
/// Elements of a block of the conversions.
const CONVERTED: usize = 1024;

#[derive(Debug)]
pub(super) struct Kernels {
    embed_dense: Kernel,
    embed_q8_0: Kernel,
    embed_q4_0: Kernel,
    embed_q4_1: Kernel,
    rms_norm: Kernel,
    silu_mul: Kernel,
    gelu_mul: Kernel,
    gather: Kernel,
    to_activation: Kernel,
    to_f32: Kernel,
}

impl Kernels {
    pub(super) fn load(device: &Device, formats: Formats) -> Result<Self, CudaError> {
        let t = formats.activation.name();
        let kernel = |name: &str| Kernel::load(device, name, 0);
        Ok(Self {
            embed_dense: kernel(&format!("embed_{t}"))?,
            embed_q8_0: kernel("embed_q8_0")?,
            embed_q4_0: kernel("embed_q4_0")?,
            embed_q4_1: kernel("embed_q4_1")?,
            rms_norm: kernel(&format!("rms_norm_{t}"))?,
            silu_mul: kernel(&format!("silu_mul_{t}"))?,
            gelu_mul: kernel(&format!("gelu_mul_{t}"))?,
            gather: kernel("gather_rows")?,
            to_activation: kernel(&format!("convert_f32_to_{t}"))?,
            to_f32: kernel(&format!("convert_{t}_to_f32"))?,
        })
    }
}

impl Operations {
    /// Rows of an embedding table `[vocab_size, hidden_dim]`, times `scale`, for the step's tokens or (where the step says so) for
    /// the token that a seat sampled last (`last_token`, `[seats]`). Inactive tokens and ids outside the table give zeros.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn embed(
        &self,
        table: &Weight,
        step: &StepInputs,
        num_tokens: usize,
        last_token: &DeviceBuffer<i32>,
        scale: f32,
        hidden: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        self.check_weight(table);
        assert!(num_tokens <= step.limits().tokens, "tokens of the step");
        assert!(last_token.len() >= step.limits().seats, "a last token for each seat");
        assert!(hidden.len() >= num_tokens * table.columns(), "a row for each token");
        let kernel = match table.packing() {
            Some(GgmlType::Q8_0) => &self.dense.embed_q8_0,
            Some(GgmlType::Q4_0) => &self.dense.embed_q4_0,
            Some(GgmlType::Q4_1) => &self.dense.embed_q4_1,
            _ => &self.dense.embed_dense,
        };
        let launch = self.launch(kernel).writes(hidden).reads(table.bytes());
        let launch = step.row_of_tokens(step.tokens(launch)).reads_from(step.device(), step.layout().rows);
        let launch = launch.reads(last_token).float(scale).int(table.rows()).int(table.columns());
        // SAFETY: the arguments of `embed_*`; lengths were checked, and the step's indices when it was written.
        unsafe { launch.submit((num_tokens, 1), BLOCK) }
    }

    /// `out = x / sqrt(mean(x²) + epsilon) · weight`, row by row; a row is as long as `weight`, a multiple of 4.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn rms_norm(
        &self,
        x: &DeviceBuffer<f32>,
        num_rows: usize,
        weight: &DeviceBuffer<f32>,
        epsilon: f32,
        out: &mut DeviceBuffer<u16>,
    ) -> Result<(), CudaError> {
        let dim = weight.len();
        assert!(dim.is_multiple_of(4), "rows of whole vectors");
        assert!(x.len() >= num_rows * dim && out.len() >= num_rows * dim, "whole rows");
        let launch = self.launch(&self.dense.rms_norm).writes(out).reads(x).reads(weight);
        // SAFETY: the arguments of `rms_norm_*`; lengths were checked.
        unsafe { launch.float(epsilon).int(dim).submit((num_rows, 1), BLOCK) }
    }

    /// `out = activation(gate) · up`; `gate_up` is `[rows, 2, columns]`, columns a multiple of 8.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn gated(
        &self,
        gate: Gate,
        gate_up: &DeviceBuffer<u16>,
        num_rows: usize,
        columns: usize,
        out: &mut DeviceBuffer<u16>,
    ) -> Result<(), CudaError> {
        assert!(columns.is_multiple_of(8), "rows of whole vectors");
        assert!(gate_up.len() >= 2 * num_rows * columns && out.len() >= num_rows * columns, "whole rows");
        let kernel = match gate {
            Gate::Silu => &self.dense.silu_mul,
            Gate::GeluTanh => &self.dense.gelu_mul,
        };
        let launch = self.launch(kernel).writes(out).reads(gate_up).int(columns);
        // SAFETY: the arguments of `*_mul_*`; lengths were checked.
        unsafe { launch.submit((columns.div_ceil(GATED_COLUMNS), num_rows), BLOCK) }
    }

    /// The rows of `hidden` (`[tokens, dim]`, dim a multiple of 4) that the step's first `num_samples` samples are taken from, in
    /// their order: `[samples, dim]`. Zeros for inactive ones.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn gather(
        &self,
        hidden: &DeviceBuffer<f32>,
        step: &StepInputs,
        num_samples: usize,
        dim: usize,
        out: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(dim.is_multiple_of(4) && num_samples <= step.limits().rows, "samples of the step");
        assert!(hidden.len() >= step.limits().tokens * dim && out.len() >= num_samples * dim, "whole rows");
        let launch = self.launch(&self.dense.gather).writes(out).reads(hidden);
        let launch = launch.reads_from(step.device(), step.layout().samples).int(dim);
        // SAFETY: the arguments of `gather_rows`; lengths were checked, and the samples' tokens when they were written.
        unsafe { launch.submit((num_samples, 1), BLOCK) }
    }

    /// Rounds the first `len` elements to the activations' format.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn to_activation(
        &self,
        from: &DeviceBuffer<f32>,
        len: usize,
        to: &mut DeviceBuffer<u16>,
    ) -> Result<(), CudaError> {
        assert!(from.len() >= len && to.len() >= len, "as many elements");
        let launch = self.launch(&self.dense.to_activation).writes(to).reads(from).long(len);
        // SAFETY: the arguments of `convert_f32_to_*`; lengths were checked.
        unsafe { launch.submit((len.div_ceil(CONVERTED), 1), BLOCK) }
    }

    /// The first `len` activations in single precision.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn to_f32(
        &self,
        from: &DeviceBuffer<u16>,
        len: usize,
        to: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(from.len() >= len && to.len() >= len, "as many elements");
        let launch = self.launch(&self.dense.to_f32).writes(to).reads(from).long(len);
        // SAFETY: the arguments of `convert_*_to_f32`; lengths were checked.
        unsafe { launch.submit((len.div_ceil(CONVERTED), 1), BLOCK) }
    }

    /// Dense weights are in the activations' format.
    pub(super) fn check_weight(&self, weight: &Weight) {
        let dense: Option<ActivationType> = weight.dense_type();
        assert!(
            dense.is_none_or(|dense| dense == self.formats.activation),
            "a weight of these kernels' format"
        );
    }
}
