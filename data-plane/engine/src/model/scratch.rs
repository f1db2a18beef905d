//! Memory of a step's activations.

use std::ops::Range;

use weir_kernels::attention::RopeTable;

use super::facts::ModelFacts;
use crate::step::StepPlan;

/// Activations of the largest step, allocated once at load.
#[derive(Debug)]
pub(super) struct Scratch {
    rows: Rows<Vec<f32>>,
    /// `[sampling rows, hidden_dim]`: the residual stream of the rows that sample.
    sampling: Vec<f32>,
    /// `[sampling rows, vocab_size]`.
    logits: Vec<f32>,
    /// Angles of the step's rows.
    pub(super) rope: RopeTable,
}

/// One buffer each, `[tokens of the step, components]`.
#[derive(Debug)]
pub(super) struct Rows<B> {
    /// The residual stream.
    pub(super) hidden: B,
    pub(super) query: B,
    pub(super) key: B,
    pub(super) value: B,
    /// What attention gives, before its output projection.
    pub(super) attended: B,
    pub(super) gate: B,
    pub(super) up: B,
}

/// The parts of the scratch memory that a step uses.
pub(super) struct Step<'a> {
    pub(super) rows: Rows<&'a mut [f32]>,
    pub(super) sampling: &'a mut [f32],
    pub(super) logits: &'a mut [f32],
    pub(super) rope: &'a mut RopeTable,
}

impl Scratch {
    pub(super) fn new(facts: &ModelFacts, max_tokens: usize, max_samples: usize) -> Self {
        let zeros = |components: usize| vec![0.0; max_tokens * components];
        Self {
            rows: Rows {
                hidden: zeros(facts.hidden_dim),
                query: zeros(facts.query_dim()),
                key: zeros(facts.kv_dim()),
                value: zeros(facts.kv_dim()),
                attended: zeros(facts.query_dim()),
                gate: zeros(facts.feed_forward_dim),
                up: zeros(facts.feed_forward_dim),
            },
            sampling: vec![0.0; max_samples * facts.hidden_dim],
            logits: vec![0.0; max_samples * facts.vocab_size as usize],
            rope: RopeTable::default(),
        }
    }

    /// The buffers cut to a step of `num_tokens` tokens and `num_samples` sampling rows.
    pub(super) fn step(&mut self, facts: &ModelFacts, num_tokens: usize, num_samples: usize) -> Step<'_> {
        let rows = &mut self.rows;
        Step {
            rows: Rows {
                hidden: &mut rows.hidden[..num_tokens * facts.hidden_dim],
                query: &mut rows.query[..num_tokens * facts.query_dim()],
                key: &mut rows.key[..num_tokens * facts.kv_dim()],
                value: &mut rows.value[..num_tokens * facts.kv_dim()],
                attended: &mut rows.attended[..num_tokens * facts.query_dim()],
                gate: &mut rows.gate[..num_tokens * facts.feed_forward_dim],
                up: &mut rows.up[..num_tokens * facts.feed_forward_dim],
            },
            sampling: &mut self.sampling[..num_samples * facts.hidden_dim],
            logits: &mut self.logits[..num_samples * facts.vocab_size as usize],
            rope: &mut self.rope,
        }
    }

    /// Logits of the latest step's `sample`-th sampling row.
    pub(super) fn logits(&self, facts: &ModelFacts, sample: usize) -> &[f32] {
        &self.logits[row(sample, facts.vocab_size as usize)]
    }
}

impl Step<'_> {
    /// Copies the residual stream of the last token of each sampling row together.
    pub(super) fn gather_sampling_rows(&mut self, plan: &StepPlan, hidden_dim: usize) {
        let mut end = 0;
        let ends = plan.rows.iter().filter_map(|row| {
            end += row.num_tokens();
            row.samples().then_some(end)
        });
        for (end, to) in ends.zip(self.sampling.chunks_exact_mut(hidden_dim)) {
            to.copy_from_slice(&self.rows.hidden[row(end - 1, hidden_dim)]);
        }
    }
}

fn row(index: usize, columns: usize) -> Range<usize> {
    index * columns..(index + 1) * columns
}
