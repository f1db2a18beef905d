//! The forward pass of a Llama model over a ragged batch, one step at a time.

use weir_kernels::attention::{
    AttentionParams, AttentionStep, RopeParams, RopeStyle, RopeTable, SequenceSpan,
};
use weir_kernels::cpu::MatmulInput;
use weir_kernels::kv::PagePool;

use super::facts::ModelFacts;
use super::load_error::LoadError;
use super::model_file::ModelFile;
use super::ops::{Ops, Projection};
use super::scratch::{Rows, Scratch};
use super::weights::{LayerWeights, Weights};
use crate::kv_cache::BlockId;
use crate::sequence::TokenId;
use crate::step::{BlockTables, PlanRow, StepPlan};

/// A loaded model with the memory of its activations.
#[derive(Debug)]
pub(crate) struct Model<O: Ops> {
    ops: O,
    facts: ModelFacts,
    weights: Weights<O::Matrix>,
    rope: RopeParams,
    scratch: Scratch,
}

impl<O: Ops> Model<O> {
    /// Loads the weights, and allocates for steps of at most `max_tokens` tokens of which `max_rows` sample.
    pub(crate) fn load(
        ops: O,
        file: &ModelFile,
        max_tokens: usize,
        max_rows: usize,
    ) -> Result<Self, LoadError> {
        let facts = file.facts().clone();
        let weights = Weights::load(&ops, file.gguf(), &facts)?;
        let scratch = Scratch::new(&facts, max_tokens, max_rows);
        let rope = RopeParams {
            style: RopeStyle::Interleaved,
            dim: facts.head_dim,
            base: facts.rope_base,
            position_scale: 1.0,
            frequency_divisors: Vec::new(),
        };
        Ok(Self { ops, facts, weights, rope, scratch })
    }

    pub(crate) fn ops(&self) -> &O {
        &self.ops
    }

    pub(crate) fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// Runs a checked plan: stores keys and values of all its tokens in their pages, and leaves the logits of its sampling
    /// rows to be read by [`Model::logits`]. `tokens`: the new tokens of all rows, one row after another.
    pub(crate) fn forward(
        &mut self,
        pool: &mut PagePool,
        plan: &StepPlan,
        tables: &BlockTables,
        tokens: &[TokenId],
    ) {
        let Self { ops, facts, weights, rope, scratch } = self;
        let mut step = scratch.step(facts, tokens.len(), plan.num_samples());
        let spans: Vec<_> = plan.rows.iter().map(|row| span(row, tables.blocks(row.seat, 0))).collect();
        step.rope.fill(
            rope,
            plan.rows.iter().flat_map(|row| row.start_position..row.end_position()).map(|p| p as usize),
        );

        ops.embed(&weights.token_embedding, tokens, step.rows.hidden);
        for (index, layer) in weights.layers.iter().enumerate() {
            attention(ops, facts, (index, layer), step.rope, &spans, pool, &mut step.rows);
            feed_forward(ops, facts, layer, &mut step.rows);
        }
        if plan.num_samples() > 0 {
            step.gather_sampling_rows(plan, facts.hidden_dim);
            let input = MatmulInput::RmsNorm {
                x: step.sampling,
                weight: &weights.output_norm,
                epsilon: facts.rms_epsilon,
            };
            ops.project(
                input,
                [Projection { weight: weights.output(), out: step.logits, accumulate: false }],
            );
        }
    }

    /// Logits that the latest step's `sample`-th sampling row ended with, `[vocab_size]`.
    pub(crate) fn logits(&self, sample: usize) -> &[f32] {
        self.scratch.logits(&self.facts, sample)
    }
}

fn span<'a>(row: &PlanRow, block_table: &'a [BlockId]) -> SequenceSpan<'a> {
    SequenceSpan { first_position: row.start_position as usize, num_rows: row.num_tokens(), block_table }
}

/// `hidden += attention(rms_norm(hidden))`.
fn attention<O: Ops>(
    ops: &O,
    facts: &ModelFacts,
    (index, layer): (usize, &LayerWeights<O::Matrix>),
    rope: &RopeTable,
    spans: &[SequenceSpan<'_>],
    pool: &mut PagePool,
    rows: &mut Rows<&mut [f32]>,
) {
    let input =
        MatmulInput::RmsNorm { x: rows.hidden, weight: &layer.attention_norm, epsilon: facts.rms_epsilon };
    let query = Projection { weight: &layer.query, out: &mut *rows.query, accumulate: false };
    let key = Projection { weight: &layer.key, out: &mut *rows.key, accumulate: false };
    let value = Projection { weight: &layer.value, out: &mut *rows.value, accumulate: false };
    ops.project(input, [query, key, value]);
    #[expect(clippy::cast_precision_loss, reason = "heads have some hundred components")]
    let scale = (facts.head_dim as f32).sqrt().recip();
    let params = AttentionParams { num_heads: facts.num_heads, scale, window: None };
    let step = AttentionStep { layer: index, params, head_norm: None, rope, spans };
    ops.attention(pool, &step, rows.query, rows.key, rows.value, rows.attended);
    let output = Projection { weight: &layer.attention_output, out: rows.hidden, accumulate: true };
    ops.project(MatmulInput::Rows(rows.attended), [output]);
}

/// `hidden += down(silu(gate(x)) · up(x))` with `x = rms_norm(hidden)`.
fn feed_forward<O: Ops>(
    ops: &O,
    facts: &ModelFacts,
    layer: &LayerWeights<O::Matrix>,
    rows: &mut Rows<&mut [f32]>,
) {
    let input =
        MatmulInput::RmsNorm { x: rows.hidden, weight: &layer.feed_forward_norm, epsilon: facts.rms_epsilon };
    ops.project(
        input,
        [
            Projection { weight: &layer.gate, out: rows.gate, accumulate: false },
            Projection { weight: &layer.up, out: rows.up, accumulate: false },
        ],
    );
    let output = Projection { weight: &layer.down, out: rows.hidden, accumulate: true };
    ops.project(MatmulInput::SiluMul { gate: rows.gate, up: rows.up }, [output]);
}
