//! The forward pass of a Llama model on a device: every buffer allocated at load, every operation submitted in order.

use weir_kernels::attention::{RopeParams, RopeStyle};
use weir_kernels::cuda::ops::{
    AttentionScratch, AttentionShape, DevicePages, Gate, Operations, Output, RopeParameters, StepInputs,
    StepLimits, Weight,
};
use weir_kernels::cuda::{CudaError, DeviceBuffer};
use weir_kernels::quant::GgmlType;

use crate::model::ModelFacts;
use crate::model::ops::MatrixLoader;
use crate::model::weights::{LayerWeights, Weights};

/// A loaded model with the memory of its activations.
#[derive(Debug)]
pub(super) struct CudaModel {
    pub(super) operations: Operations,
    pub(super) facts: ModelFacts,
    weights: Weights<Weight>,
    norms: Norms,
    rope: RopeParameters,
    buffers: Buffers,
    scratch: AttentionScratch,
}

/// The norms' weights, `[hidden_dim]` each.
#[derive(Debug)]
struct Norms {
    /// Before attention and before the feed-forward layer, by layer.
    layers: Vec<[DeviceBuffer<f32>; 2]>,
    output: DeviceBuffer<f32>,
}

/// Activations of the largest step, `[tokens, components]`.
#[derive(Debug)]
struct Buffers {
    /// The residual stream, in single precision.
    hidden: DeviceBuffer<f32>,
    normed: DeviceBuffer<u16>,
    /// Query heads, key heads, value heads.
    qkv: DeviceBuffer<u16>,
    attended: DeviceBuffer<u16>,
    gate_up: DeviceBuffer<u16>,
    gated: DeviceBuffer<u16>,
    /// Cosines and sines of the tokens' positions.
    angles: DeviceBuffer<f32>,
    /// The residual stream of the rows that sample.
    sampling: DeviceBuffer<f32>,
    /// `[sampling rows, vocab_size]`.
    logits: DeviceBuffer<f32>,
}

/// How much of a step runs: kernels may be launched for more than there is, the rest is inactive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) rows: usize,
    pub(super) tokens: usize,
    pub(super) samples: usize,
    /// Every row has one token and room among the splits.
    pub(super) is_decode: bool,
}

/// Brings matrices to the device.
pub(super) struct Loader<'a>(pub(super) &'a Operations);

impl MatrixLoader for Loader<'_> {
    type Matrix = Weight;

    fn matrix(
        &self,
        ggml_type: GgmlType,
        bytes: &[u8],
        rows: usize,
        columns: usize,
    ) -> Result<Weight, String> {
        let activation = self.0.formats().activation;
        Weight::load(self.0.device(), activation, ggml_type, bytes, (rows, columns))
            .map_err(|error| error.to_string())
    }
}

impl CudaModel {
    /// Allocates for the largest step beside the weights.
    pub(super) fn new(
        operations: Operations,
        facts: ModelFacts,
        weights: Weights<Weight>,
        limits: &StepLimits,
    ) -> Result<Self, CudaError> {
        let device = operations.device().clone();
        let layer_norms = |layer: &LayerWeights<Weight>| {
            Ok::<_, CudaError>([
                device.buffer_of(&layer.attention_norm)?,
                device.buffer_of(&layer.feed_forward_norm)?,
            ])
        };
        let norms = Norms {
            layers: weights.layers.iter().map(layer_norms).collect::<Result<_, _>>()?,
            output: device.buffer_of(&weights.output_norm)?,
        };
        let rope = RopeParameters::load(
            &device,
            &RopeParams {
                style: RopeStyle::Interleaved,
                dim: facts.head_dim,
                base: facts.rope_base,
                position_scale: 1.0,
                frequency_divisors: Vec::new(),
            },
        )?;
        let activations = |components: usize| device.zeros::<u16>(limits.tokens * components);
        let buffers = Buffers {
            hidden: device.zeros(limits.tokens * facts.hidden_dim)?,
            normed: activations(facts.hidden_dim)?,
            qkv: activations(facts.query_dim() + 2 * facts.kv_dim())?,
            attended: activations(facts.query_dim())?,
            gate_up: activations(2 * facts.feed_forward_dim)?,
            gated: activations(facts.feed_forward_dim)?,
            angles: device.zeros(limits.tokens * facts.head_dim)?,
            sampling: device.zeros(limits.rows * facts.hidden_dim)?,
            logits: device.zeros(limits.rows * facts.vocab_size as usize)?,
        };
        let scratch = AttentionScratch::new(&device, limits.splits, facts.num_heads, facts.head_dim)?;
        Ok(Self { operations, facts, weights, norms, rope, buffers, scratch })
    }

    /// Measures which products of a step of that many tokens the library computes faster, for each of a layer's five shapes.
    /// Waits for the device.
    pub(super) fn choose_multipliers(&mut self, tokens: usize) -> Result<(), CudaError> {
        let Self { operations, facts, weights, buffers, .. } = self;
        let Some(layer) = weights.layers.first() else { return Ok(()) };
        let Buffers { hidden, normed, qkv, attended, gate_up, gated, .. } = buffers;
        let (qkv_dim, kv_first) = (facts.query_dim() + 2 * facts.kv_dim(), facts.query_dim());
        let (hidden_dim, inner) = (facts.hidden_dim, facts.feed_forward_dim);
        let mut choose = |x: &DeviceBuffer<u16>, weight: &Weight, out: Output<'_>, place| {
            operations.choose_multiplier(x, tokens, weight, out, place).map(usize::from)
        };
        let by_library = choose(normed, &layer.query, Output::Activations(qkv), (qkv_dim, 0))?
            + choose(normed, &layer.key, Output::Activations(qkv), (qkv_dim, kv_first))?
            + choose(attended, &layer.attention_output, Output::Residual(hidden), (hidden_dim, 0))?
            + choose(normed, &layer.gate, Output::Activations(gate_up), (2 * inner, 0))?
            + choose(gated, &layer.down, Output::Residual(hidden), (hidden_dim, 0))?;
        if by_library > 0 {
            tracing::info!(
                by_library,
                "cuBLASLt is faster for some products of large steps: beside other requests the same one may be answered in \
                 other words; set reproducible if that matters"
            );
        }
        Ok(())
    }

    /// Logits of the step's sampling rows, `[rows, vocab_size]`.
    pub(super) fn logits(&self) -> &DeviceBuffer<f32> {
        &self.buffers.logits
    }

    /// Submits the forward pass of the step that was written last.
    pub(super) fn forward(
        &mut self,
        step: &StepInputs,
        pages: &mut DevicePages,
        last_token: &DeviceBuffer<i32>,
        extent: Extent,
    ) -> Result<(), CudaError> {
        let Self { operations, facts, weights, norms, rope, buffers, scratch } = self;
        let tokens = extent.tokens;
        operations.embed(&weights.token_embedding, step, tokens, last_token, 1.0, &mut buffers.hidden)?;
        operations.rope_table(rope, step, tokens, &mut buffers.angles)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let pass = Pass { operations, facts, norms: &norms.layers[index], layer, index, step, extent };
            pass.attention(rope, buffers, pages, scratch)?;
            pass.feed_forward(buffers)?;
        }
        if extent.samples > 0 {
            let Buffers { hidden, normed, sampling, logits, .. } = buffers;
            operations.gather(hidden, step, extent.samples, facts.hidden_dim, sampling)?;
            operations.rms_norm(sampling, extent.samples, &norms.output, facts.rms_epsilon, normed)?;
            let vocab_size = facts.vocab_size as usize;
            let out = Output::Single(logits);
            operations.matmul(normed, extent.samples, weights.output(), None, out, (vocab_size, 0))?;
        }
        Ok(())
    }
}

/// One layer of one step.
struct Pass<'a> {
    operations: &'a Operations,
    facts: &'a ModelFacts,
    norms: &'a [DeviceBuffer<f32>; 2],
    layer: &'a LayerWeights<Weight>,
    index: usize,
    step: &'a StepInputs,
    extent: Extent,
}

impl Pass<'_> {
    /// `hidden += attention(rms_norm(hidden))`.
    fn attention(
        &self,
        rope: &RopeParameters,
        buffers: &mut Buffers,
        pages: &mut DevicePages,
        scratch: &mut AttentionScratch,
    ) -> Result<(), CudaError> {
        let Self { operations, facts, layer, step, extent, .. } = *self;
        let Buffers { hidden, normed, qkv, attended, angles, .. } = buffers;
        operations.rms_norm(hidden, extent.tokens, &self.norms[0], facts.rms_epsilon, normed)?;
        let (query_dim, kv_dim) = (facts.query_dim(), facts.kv_dim());
        let stride = query_dim + 2 * kv_dim;
        for (weight, column) in
            [(&layer.query, 0), (&layer.key, query_dim), (&layer.value, query_dim + kv_dim)]
        {
            operations.matmul(
                normed,
                extent.tokens,
                weight,
                None,
                Output::Activations(qkv),
                (stride, column),
            )?;
        }
        let shape = AttentionShape {
            num_heads: facts.num_heads,
            num_kv_heads: facts.num_kv_heads,
            layer: self.index,
        };
        operations.rope_store(shape, (rope, angles), None, step, extent.tokens, qkv, pages)?;
        #[expect(clippy::cast_precision_loss, reason = "heads have some hundred components")]
        let scale = (facts.head_dim as f32).sqrt().recip();
        let size = (extent.rows, extent.tokens);
        operations.attention(
            shape,
            (scale, None),
            step,
            size,
            extent.is_decode,
            qkv,
            pages,
            scratch,
            attended,
        )?;
        let out = (facts.hidden_dim, 0);
        operations.matmul(
            attended,
            extent.tokens,
            &layer.attention_output,
            None,
            Output::Residual(hidden),
            out,
        )
    }

    /// `hidden += down(silu(gate(x)) · up(x))` with `x = rms_norm(hidden)`.
    fn feed_forward(&self, buffers: &mut Buffers) -> Result<(), CudaError> {
        let Self { operations, facts, layer, extent, .. } = *self;
        let Buffers { hidden, normed, gate_up, gated, .. } = buffers;
        operations.rms_norm(hidden, extent.tokens, &self.norms[1], facts.rms_epsilon, normed)?;
        let inner = facts.feed_forward_dim;
        for (weight, column) in [(&layer.gate, 0), (&layer.up, inner)] {
            operations.matmul(
                normed,
                extent.tokens,
                weight,
                None,
                Output::Activations(gate_up),
                (2 * inner, column),
            )?;
        }
        operations.gated(Gate::Silu, gate_up, extent.tokens, inner, gated)?;
        let out = (facts.hidden_dim, 0);
        operations.matmul(gated, extent.tokens, &layer.down, None, Output::Residual(hidden), out)
    }
}
