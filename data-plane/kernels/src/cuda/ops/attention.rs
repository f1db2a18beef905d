//! RoPE with the writing of keys and values, and attention over pages.

use super::{DevicePages, Formats, Operations, StepInputs};
use crate::attention::{RopeParams, RopeStyle};
use crate::cuda::launch::{Kernel, Launch};
use crate::cuda::{CudaError, Device, DeviceBuffer};

/// Positions of a split: one unfinished softmax each, merged in ascending order.
pub const SPLIT_POSITIONS: usize = 256;
/// Query rows (a head of a token each) of a tile of the path of longer rows.
pub(super) const TILE_ROWS: usize = 64;
/// Most query heads for each KV head on the path of rows with one token.
pub(super) const QUERY_ROWS_MAX: usize = 16;
/// Floats that a head's split leaves: the values, maximum and sum, padded to 16 bytes.
const fn partial_floats(head_dim: usize) -> usize {
    head_dim + 4
}
/// Blocks that keep a device of this many multiprocessors busy; each goes on to the next piece of work.
const BLOCKS: usize = 8 * 132;
/// Positions of a tile in shared memory.
const TILE_POSITIONS: usize = 32;

/// Heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads; a multiple of the KV heads.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Layer in the page.
    pub layer: usize,
}

/// Rotary position embedding as the kernels read it.
#[derive(Debug)]
pub struct RopeParameters {
    style: RopeStyle,
    position_scale: f32,
    /// `[dim / 2]`.
    frequencies: DeviceBuffer<f32>,
}

impl RopeParameters {
    /// Brings the frequencies to the device.
    ///
    /// # Errors
    /// [`CudaError::Memory`] or [`CudaError::Driver`].
    pub fn load(device: &Device, params: &RopeParams) -> Result<Self, CudaError> {
        let frequencies: Vec<f32> = (0..params.dim / 2).map(|i| params.frequency(i)).collect();
        Ok(Self {
            style: params.style,
            position_scale: params.position_scale,
            frequencies: device.buffer_of(&frequencies)?,
        })
    }

    /// Half of the components that are turned.
    pub fn half_dim(&self) -> usize {
        self.frequencies.len()
    }
}

/// What attention leaves between its two kernels.
#[derive(Debug)]
pub struct AttentionScratch {
    partial: DeviceBuffer<f32>,
}

impl AttentionScratch {
    /// Allocates for as many splits as a step may have.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub fn new(device: &Device, splits: usize, num_heads: usize, head_dim: usize) -> Result<Self, CudaError> {
        Ok(Self { partial: device.zeros(splits * num_heads * partial_floats(head_dim))? })
    }
}

#[derive(Debug)]
pub(super) struct Kernels {
    rope_table: Kernel,
    rope_store: Kernel,
    decode: Kernel,
    merge: Kernel,
    prefill: Kernel,
}

impl Kernels {
    pub(super) fn load(device: &Device, formats: Formats) -> Result<Self, CudaError> {
        let Formats { activation, kv, head_dim } = formats;
        let (t, kv_name) = (activation.name(), kv.name());
        // Two stages of keys and values; prefill also keeps what each of its 64 rows has merged, in single precision.
        let stages = 2 * 2 * TILE_POSITIONS * head_dim * kv.bytes();
        let merged = TILE_ROWS * head_dim * 4;
        let kernel = |name: &str, shared_bytes| Kernel::load(device, name, shared_bytes);
        Ok(Self {
            rope_table: kernel("rope_table", 0)?,
            rope_store: kernel(&format!("rope_store_{t}_{kv_name}"), 0)?,
            decode: kernel(&format!("attention_decode_{t}_{kv_name}_{head_dim}"), stages)?,
            merge: kernel(&format!("attention_merge_{t}_{head_dim}"), 0)?,
            prefill: kernel(&format!("attention_prefill_{t}_{kv_name}_{head_dim}"), stages + merged)?,
        })
    }
}

impl Operations {
    /// Cosines and sines of the step's tokens, `[tokens, half_dim, 2]`: once a step, for every layer of the same parameters.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn rope_table(
        &self,
        rope: &RopeParameters,
        step: &StepInputs,
        num_tokens: usize,
        table: &mut DeviceBuffer<f32>,
    ) -> Result<(), CudaError> {
        assert!(num_tokens <= step.limits().tokens, "tokens of the step");
        assert!(table.len() >= num_tokens * rope.half_dim() * 2, "a row for each token");
        let launch = self.launch(&self.attention.rope_table).writes(table);
        let launch = launch.reads_from(step.device(), step.layout().token_position).reads(&rope.frequencies);
        let launch = launch.float(rope.position_scale).int(rope.half_dim());
        // SAFETY: the arguments of `rope_table`; lengths were checked.
        unsafe { launch.submit((num_tokens, 1), 128) }
    }

    /// Turns the queries in place, and writes keys (turned) and values to the pages of their positions. `qkv`: `[tokens,
    /// (num_heads + 2 · num_kv_heads) · head_dim]`, query heads, key heads, value heads. `head_norm`: weights `[head_dim]` of an RMSNorm over
    /// each head of the queries and of the keys before they are turned, and its epsilon.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "one operation of a layer, each argument a tensor of it")]
    pub fn rope_store(
        &self,
        shape: AttentionShape,
        rope: (&RopeParameters, &DeviceBuffer<f32>),
        head_norm: Option<(&DeviceBuffer<f32>, &DeviceBuffer<f32>, f32)>,
        step: &StepInputs,
        num_tokens: usize,
        qkv: &mut DeviceBuffer<u16>,
        pages: &mut DevicePages,
    ) -> Result<(), CudaError> {
        let head_dim = self.formats.head_dim;
        let (parameters, table) = rope;
        let heads = self.check_attention(shape, step, num_tokens, qkv, pages);
        assert!(table.len() >= num_tokens * parameters.half_dim() * 2, "angles for each token");
        assert!(2 * parameters.half_dim() <= head_dim, "no more components than a head has");
        if let Some((query, key, _)) = head_norm {
            assert!(query.len() == head_dim && key.len() == head_dim, "a weight for each component");
        }
        let launch = self.launch(&self.attention.rope_store).writes(qkv).writes(&mut pages.pool).reads(table);
        let launch = step.row_of_tokens(launch.reads_from(step.device(), step.layout().rows));
        let launch = launch.reads_from(step.device(), step.layout().token_position).reads(&pages.tables);
        let launch = launch.reads_if_any(head_norm.map(|norm| norm.0));
        let launch = launch.reads_if_any(head_norm.map(|norm| norm.1));
        let launch = launch.float(head_norm.map_or(0.0, |norm| norm.2));
        let launch = launch.int(shape.num_heads).int(shape.num_kv_heads).int(head_dim);
        let style = usize::from(parameters.style == RopeStyle::Halves);
        let launch = launch.int(parameters.half_dim()).int(style).int(pages.max_blocks);
        let launch = launch.long(pages.page_bytes).long(self.layer_offset(shape));
        // SAFETY: the arguments of `rope_store_*`; lengths were checked, seats and pages when the step was written.
        unsafe { launch.submit((num_tokens, heads), 32) }
    }

    /// Causal attention of the step's rows over their pages: `out` is `[tokens, num_heads · head_dim]`. A query sees `window`
    /// positions, itself included; dot products are multiplied by `scale`. `num_rows` and `num_tokens` may be more than the step
    /// has. With `decode_only` the step's rows have one token each and room among the splits, so that one kernel less is launched.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    #[expect(clippy::too_many_arguments, reason = "one operation of a layer, each argument a tensor of it")]
    pub fn attention(
        &self,
        shape: AttentionShape,
        (scale, window): (f32, Option<usize>),
        step: &StepInputs,
        (num_rows, num_tokens): (usize, usize),
        decode_only: bool,
        qkv: &DeviceBuffer<u16>,
        pages: &DevicePages,
        scratch: &mut AttentionScratch,
        out: &mut DeviceBuffer<u16>,
    ) -> Result<(), CudaError> {
        let head_dim = self.formats.head_dim;
        let AttentionShape { num_heads, num_kv_heads, .. } = shape;
        self.check_attention(shape, step, num_tokens, qkv, pages);
        assert!(num_rows <= step.limits().rows, "rows of the step");
        assert!(out.len() >= step.limits().tokens * num_heads * head_dim, "an output for each token");
        let needed = step.limits().splits * num_heads * partial_floats(head_dim);
        assert!(scratch.partial.len() >= needed, "room for each split");
        let layout = step.layout();
        if step.limits().splits > 0 {
            let launch = self.launch(&self.attention.decode).writes(&mut scratch.partial).reads(qkv);
            let launch = launch.reads(&pages.pool).reads_from(step.device(), layout.splits);
            let launch = launch.reads_from(step.device(), layout.counts);
            let launch = self.rules(launch, shape, scale, window, step, pages);
            let blocks = step.limits().splits.min(BLOCKS);
            // SAFETY: the arguments of `attention_decode_*`; lengths were checked, seats and pages when the step was written.
            unsafe { launch.submit((blocks, num_kv_heads), 32)? };
            let launch = self.launch(&self.attention.merge).writes(out).reads(&scratch.partial);
            let launch = launch.reads_from(step.device(), layout.row_splits);
            let launch = launch.reads_from(step.device(), layout.rows).int(num_heads);
            // SAFETY: the arguments of `attention_merge_*`; lengths were checked.
            unsafe { launch.submit((num_rows, num_heads), head_dim / 2)? };
        }
        if decode_only {
            return Ok(());
        }
        let launch = self.launch(&self.attention.prefill).writes(out).reads(qkv).reads(&pages.pool);
        let launch = launch.reads_from(step.device(), layout.tiles);
        let launch = launch.reads_from(step.device(), layout.counts + 1);
        let launch = self.rules(launch, shape, scale, window, step, pages);
        let blocks = step.max_tiles().min(BLOCKS);
        // SAFETY: the arguments of `attention_prefill_*`; lengths were checked, seats and pages when the step was written.
        unsafe { launch.submit((blocks, num_kv_heads), 128) }
    }

    /// The arguments that both kernels of attention end with.
    fn rules<'a>(
        &self,
        launch: Launch<'a>,
        shape: AttentionShape,
        scale: f32,
        window: Option<usize>,
        step: &StepInputs,
        pages: &DevicePages,
    ) -> Launch<'a> {
        let launch = launch.reads_from(step.device(), step.layout().rows).reads(&pages.tables).float(scale);
        let launch = launch.int(shape.num_heads).int(shape.num_kv_heads).int(window.unwrap_or(0));
        launch.int(pages.max_blocks).long(pages.page_bytes).long(self.layer_offset(shape))
    }

    /// Bytes from a page's start to those of a layer.
    fn layer_offset(&self, shape: AttentionShape) -> usize {
        shape.layer * DevicePages::layer_bytes(&self.formats, shape.num_kv_heads)
    }

    /// Panics if something is too short; returns the heads of a token in `qkv`.
    fn check_attention(
        &self,
        shape: AttentionShape,
        step: &StepInputs,
        num_tokens: usize,
        qkv: &DeviceBuffer<u16>,
        pages: &DevicePages,
    ) -> usize {
        let AttentionShape { num_heads, num_kv_heads, .. } = shape;
        let limits = step.limits();
        assert!(num_tokens <= limits.tokens, "tokens of the step");
        assert!(num_heads == num_kv_heads * limits.heads_per_kv, "the step's query heads for each KV head");
        let heads = num_heads + 2 * num_kv_heads;
        assert!(qkv.len() >= limits.tokens * heads * self.formats.head_dim, "heads of each token");
        let end = self.layer_offset(AttentionShape { layer: shape.layer + 1, ..shape });
        assert!(end <= pages.page_bytes, "a layer of the page");
        assert!(limits.pages <= pages.num_pages(), "pages that the step may name");
        assert!(
            limits.seats == pages.num_seats() && limits.max_blocks == pages.max_blocks,
            "the step's tables"
        );
        heads
    }
}
