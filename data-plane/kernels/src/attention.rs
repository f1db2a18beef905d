//! What one attention call is told: the same plain data for `reference` and `cpu`.

/// Shape and rules of a layer's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// Query heads; a multiple of the KV heads of the page layout.
    pub num_heads: usize,
    /// What the dot products are multiplied by (usually `head_dim^-0.5`).
    pub scale: f32,
    /// A query sees this many positions, itself included; `None` for all of them.
    pub window: Option<usize>,
}

/// One layer's attention in a step, tensors aside.
#[derive(Debug, Clone, Copy)]
pub struct AttentionStep<'a> {
    /// Layer *in the page* (see [`crate::kv::PageLayout`]).
    pub layer: usize,
    /// Shape and rules.
    pub params: AttentionParams,
    /// Normalisation of queries and keys before RoPE, if the model has it.
    pub head_norm: Option<HeadNorm<'a>>,
    /// The rows' angles.
    pub rope: &'a RopeTable,
    /// The rows' sequences.
    pub spans: &'a [SequenceSpan<'a>],
}

impl AttentionStep<'_> {
    /// Rows of all spans.
    pub fn num_rows(&self) -> usize {
        self.spans.iter().map(|span| span.num_rows).sum()
    }
}

/// The rows of one sequence in a step. The rows of all spans follow each other in the activations, in the spans' order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceSpan<'a> {
    /// Absolute position of the first row; row `i` stands at `first_position + i`.
    pub first_position: usize,
    /// Rows of this sequence in the step.
    pub num_rows: usize,
    /// Page of block `b` (positions `16·b .. 16·b + 16`); covers at least every position up to the last row's. Pages
    /// wholly behind the window of every row are not read and may be any id.
    pub block_table: &'a [u32],
}

/// Which components of a head RoPE turns together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `(2i, 2i+1)`: Llama files of llama.cpp, whose query and key rows are permuted for it.
    Interleaved,
    #[default]
    /// Halves `(i, i + dim/2)`: everything else ("NeoX").
    Halves,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeParams {
    /// Which components turn together.
    pub style: RopeStyle,
    /// Leading components of a head that are turned; even, at most `head_dim`.
    pub dim: usize,
    /// Base of the geometric frequencies (`rope.freq_base`).
    pub base: f32,
    /// Positions are multiplied by this (linear scaling: 1/factor).
    pub position_scale: f32,
    /// Divisors of the `dim/2` frequencies (`rope_freqs.weight` of Llama 3 files); empty for none.
    pub frequency_divisors: Vec<f32>,
}

/// Cosines and sines of a step's rows, made once and used by every layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RopeTable {
    style: RopeStyle,
    half_dim: usize,
    /// `[rows, half_dim]` cosines, then the sines of the same shape.
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl RopeTable {
    /// The table of these absolute positions, one row each. Frequencies and angles are rounded to single precision as
    /// Transformers rounds them, so that far positions agree.
    pub fn new(params: &RopeParams, positions: impl Iterator<Item = usize>) -> Self {
        let mut table = Self::default();
        table.fill(params, positions);
        table
    }

    /// The same into an existing table, reusing its memory.
    pub fn fill(&mut self, params: &RopeParams, positions: impl Iterator<Item = usize>) {
        self.style = params.style;
        self.half_dim = params.dim / 2;
        self.cosines.clear();
        self.sines.clear();
        let frequencies: Vec<f32> = (0..self.half_dim).map(|i| params.frequency(i)).collect();
        for position in positions {
            #[expect(clippy::cast_precision_loss, reason = "positions are far below 2^24")]
            let position = position as f32 * params.position_scale;
            for frequency in &frequencies {
                let (sine, cosine) = f64::from(position * frequency).sin_cos();
                #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision")]
                {
                    self.cosines.push(cosine as f32);
                    self.sines.push(sine as f32);
                }
            }
        }
    }

    /// Rows in the table.
    pub fn num_rows(&self) -> usize {
        self.cosines.len().checked_div(self.half_dim).unwrap_or(0)
    }

    /// Which components turn together.
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// Half of the turned components.
    pub fn half_dim(&self) -> usize {
        self.half_dim
    }

    /// Cosines and sines of a row. Panics if there is no such row.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.half_dim..(row + 1) * self.half_dim;
        (&self.cosines[range.clone()], &self.sines[range])
    }
}

impl RopeParams {
    /// Angle of the `i`-th pair of components at position 1, in single precision.
    pub(crate) fn frequency(&self, i: usize) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "head dimensions are small")]
        let exponent = (2 * i) as f32 / self.dim as f32;
        #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision")]
        let power = f64::from(self.base).powf(f64::from(exponent)) as f32;
        1.0 / power / self.frequency_divisors.get(i).copied().unwrap_or(1.0)
    }
}

/// RMSNorm over each head of the queries and keys before RoPE (Gemma 3, Qwen 3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm<'a> {
    /// `[head_dim]` weight for queries.
    pub query_weight: &'a [f32],
    /// `[head_dim]` weight for keys.
    pub key_weight: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_each_rows_angles() {
        let params = RopeParams {
            style: RopeStyle::Halves,
            dim: 4,
            base: 10_000.0,
            position_scale: 0.5,
            frequency_divisors: vec![1.0, 2.0],
        };
        let table = RopeTable::new(&params, [0, 6].into_iter());
        assert_eq!((table.num_rows(), table.half_dim()), (2, 2));
        assert_eq!(table.row(0), (&[1.0, 1.0][..], &[0.0, 0.0][..]));
        let (cosines, sines) = table.row(1);
        for (i, angle) in [3.0_f64, 3.0 * 0.01 / 2.0].into_iter().enumerate() {
            assert!((f64::from(cosines[i]) - angle.cos()).abs() < 1e-6);
            assert!((f64::from(sines[i]) - angle.sin()).abs() < 1e-6);
        }
    }
}
