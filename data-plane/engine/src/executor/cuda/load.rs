//! Bringing a model to a device: what fits is decided here, once, so that nothing runs out of memory later.

use weir_kernels::cuda::ops::{
    ActivationType, DevicePages, Formats, KvElement, Operations, SPLIT_POSITIONS, SeatTables, StepInputs,
    StepLimits, Weight,
};
use weir_kernels::cuda::{CudaError, Device, Graph};

use std::time::Duration;

use super::model::{CudaModel, Extent, Loader};
use super::needs::Needs;
use super::steps::Outputs;
use super::{CudaExecutor, IN_FLIGHT};
use crate::executor::{Capacity, LayoutId};
use crate::model::weights::Weights;
use crate::model::{LoadError, ModelFacts, ModelFile};
use crate::step::BlockTables;

const BLOCK_TOKENS: usize = weir_kernels::kv::BLOCK_TOKENS;
/// Splits of 256 positions over all decoding rows, for each of which a head's unfinished sums are kept.
const SPLITS_FOR_EACH_ROW: usize = 32;
/// Largest decode step that is recorded as a graph; above it launching costs little beside running.
const GRAPH_ROWS_MAX: usize = 256;

/// The dials of a CUDA executor.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaConfig {
    /// Index of the device.
    pub ordinal: usize,
    /// Format of activations, and of weights that do not stay packed; `None` for bf16 if the model's are bf16 or f32,
    /// which need its range, and f16, which is more exact, for all others.
    pub activation: Option<ActivationType>,
    /// Format of keys and values; `None` for that of activations.
    pub kv: Option<KvElement>,
    /// Share of the device's memory that may be in use when all is loaded, in hundredths.
    pub memory_percent: u8,
    /// Most sequences in a step.
    pub max_seats: u32,
    /// Most new tokens in a step.
    pub max_step_tokens: u32,
    /// A shorter context than the model's own; `None` for the model's.
    pub context_limit: Option<u32>,
    /// Pages in host memory, for swapping and transfer.
    pub num_host_pages: u32,
    /// A device that takes longer for a step hangs.
    pub step_timeout: Duration,
    /// Only kernels of which a row's bits do not depend on what stands beside it. Otherwise large steps use cuBLASLt where it
    /// is installed, and for those products for which it was measured to be faster.
    pub reproducible: bool,
}

/// Why a model cannot be served from a device.
#[derive(Debug, thiserror::Error)]
pub enum CudaLoadError {
    /// There is no device, or it failed.
    #[error("the CUDA device cannot be used")]
    Device(#[source] CudaError),
    /// The memory for running steps is not there.
    #[error(
        "the device's memory does not hold what steps work in: {needed} bytes more are needed, {free} are free; fewer seats \
         or fewer tokens in a step would fit"
    )]
    Workspace {
        /// Bytes of the part that did not fit.
        needed: u64,
        /// Bytes free at that time.
        free: u64,
    },
    /// The file is no model that this build runs.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The kernels are made for other heads.
    #[error("heads of {head_dim} components: the CUDA kernels are made for 64, 128 and 256")]
    HeadDim {
        /// The model's.
        head_dim: usize,
    },
    /// A dial is out of range.
    #[error("{what} is {actual}, allowed is {min} to {max}")]
    Dial {
        /// Which.
        what: &'static str,
        /// As configured.
        actual: u64,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
    },
    /// Not enough memory.
    #[error(
        "{allowed} bytes of the device's memory may be used, {needed} are needed: {weights} for weights, {pages} for the \
         pages of {what}; {would_fit} would fit"
    )]
    DoesNotFit {
        /// Bytes that the utilisation dial allows of what is free.
        allowed: u64,
        /// Bytes needed at least.
        needed: u64,
        /// Of these, weights.
        weights: u64,
        /// Of these, pages.
        pages: u64,
        /// What the pages must hold at least.
        what: &'static str,
        /// What could be changed, and to what.
        would_fit: String,
    },
}

impl CudaExecutor {
    /// Loads an open model file onto a device.
    ///
    /// # Errors
    /// [`CudaLoadError`] in words for the operator: no device, no model, or not enough memory and what would fit.
    pub fn load_file(file: &ModelFile, config: &CudaConfig) -> Result<Self, CudaLoadError> {
        let load = |operations: &Operations| Weights::load(&Loader(operations), file.gguf(), file.facts());
        Self::load(file.facts(), weight_bytes(file), load, config)
    }

    /// Loads a model of these facts, whose matrices take `weight_bytes` on the device, where `weights` brings them.
    pub(super) fn load(
        facts: &ModelFacts,
        weight_bytes: u64,
        weights: impl FnOnce(&Operations) -> Result<Weights<Weight>, LoadError>,
        config: &CudaConfig,
    ) -> Result<Self, CudaLoadError> {
        let context_limit = config.context_limit.unwrap_or(facts.context_limit);
        check(config, facts, context_limit)?;
        let device = Device::open(config.ordinal)?;
        let formats = formats(config, facts);
        let page_bytes = facts.num_layers * DevicePages::layer_bytes(&formats, facts.num_kv_heads);
        let needs =
            Needs { page_bytes, seats: config.max_seats as usize, context_limit: context_limit as usize };
        let (free, total) = device.memory()?;
        let reserve = total / 100 * (100 - u64::from(config.memory_percent));
        // Before anything is read: what certainly does not fit.
        needs.check(free.saturating_sub(reserve), weight_bytes)?;
        let limits = limits(config, facts, context_limit);
        let operations = Operations::load(&device, formats)?;
        let operations = if config.reproducible { operations } else { operations.with_library()? };
        let weights = weights(&operations)?;
        let mut model = CudaModel::new(operations, facts.clone(), weights, &limits)?;
        model.choose_multipliers(limits.tokens)?;
        let seats = SeatTables::new(
            &device,
            facts.vocab_size as usize,
            (limits.seats, limits.rows),
            (limits.seats, context_limit as usize),
            IN_FLIGHT as usize,
        )?;
        let outputs = (0..IN_FLIGHT).map(|_| Outputs::new(&device, limits.rows)).collect::<Result<_, _>>()?;
        let mut workspace = Workspace { device: &device, model, seats };
        let (pool, graphs) = workspace.largest_pool(&needs, &limits, reserve)?;
        let Workspace { model, seats, .. } = workspace;
        let num_pages = u32::try_from(pool.pages.num_pages()).expect("made of so many");
        let host_pages = device.pinned(page_bytes * config.num_host_pages as usize)?;
        let layout = LayoutId::of(&format!("cuda {formats:?} {} {}", facts.num_layers, facts.num_kv_heads));
        tracing::info!(
            device = device.info().name,
            model = facts.name.as_deref().unwrap_or("unnamed"),
            dtype = facts.dtype,
            weight_bytes,
            activations = ?formats.activation,
            kv = ?formats.kv,
            "KV cache size: {} tokens; {} seats; longest request fits {:.1} times; {} graphs",
            u64::from(num_pages) * BLOCK_TOKENS as u64,
            config.max_seats,
            f64::from(num_pages) / needs.longest() as f64,
            graphs.len()
        );
        Ok(Self {
            tables: BlockTables::new(config.max_seats, 1),
            top_logprobs: vec![None; limits.seats],
            capacity: capacity(config, facts, context_limit, (num_pages, page_bytes, layout)),
            device,
            model,
            inputs: pool.inputs,
            pages: pool.pages,
            seats,
            graphs,
            outputs,
            in_flight: std::collections::VecDeque::new(),
            host_pages,
            next_ticket: 0,
            step_timeout: config.step_timeout,
        })
    }
}

/// What stays while pools of several sizes are tried.
struct Workspace<'a> {
    device: &'a Device,
    model: CudaModel,
    seats: SeatTables,
}

/// Pages, and the steps that name them.
struct Pool {
    inputs: StepInputs,
    pages: DevicePages,
}

impl Workspace<'_> {
    /// The pool that leaves `reserve` bytes free. Graphs take memory too, and name the pool's addresses: they are recorded over
    /// the smallest pool to see how much, and again over the one that takes what is then left.
    fn largest_pool(
        &mut self,
        needs: &Needs,
        limits: &StepLimits,
        reserve: u64,
    ) -> Result<(Pool, Vec<(usize, Graph)>), CudaLoadError> {
        let num_least = needs.least().0;
        let least = self.pool(&StepLimits { pages: num_least, ..*limits }, needs.page_bytes)?;
        let free = self.device.memory()?.0 + (num_least * needs.page_bytes) as u64;
        drop(least);
        let num_pages = needs.pages(free.saturating_sub(reserve))?;
        Ok(self.pool(&StepLimits { pages: num_pages as usize, ..*limits }, needs.page_bytes)?)
    }

    /// Allocates a pool, and records a graph for each size of decode step over it: every size up to 8, every 8 up to 64,
    /// then every 32.
    fn pool(
        &mut self,
        limits: &StepLimits,
        page_bytes: usize,
    ) -> Result<(Pool, Vec<(usize, Graph)>), CudaError> {
        let in_flight = IN_FLIGHT as usize;
        let mut pages = DevicePages::new(
            self.device,
            page_bytes,
            limits.pages,
            (limits.seats, limits.max_blocks),
            in_flight,
        )?;
        let inputs = StepInputs::new(self.device, *limits, in_flight)?;
        let max_rows = limits.rows.min(GRAPH_ROWS_MAX);
        let sizes = (1..8).chain((8..64).step_by(8)).chain((64..=GRAPH_ROWS_MAX).step_by(32));
        let sizes = sizes.filter(|size| *size < max_rows).chain([max_rows]);
        let Self { device, model, seats } = self;
        let mut graphs = Vec::new();
        for size in sizes {
            let extent = Extent { rows: size, tokens: size, samples: size, is_decode: true };
            let forward = || model.forward(&inputs, &mut pages, seats.last_token(), extent);
            graphs.push((size, device.record_graph(forward)?));
        }
        Ok((Pool { inputs, pages }, graphs))
    }
}

impl From<CudaError> for CudaLoadError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Memory { needed, free } => Self::Workspace { needed, free },
            other => Self::Device(other),
        }
    }
}

fn formats(config: &CudaConfig, facts: &ModelFacts) -> Formats {
    let activation = config.activation.unwrap_or(match facts.dtype.as_str() {
        "BF16" | "F32" => ActivationType::Bf16,
        _ => ActivationType::F16,
    });
    let kv = config.kv.unwrap_or(match activation {
        ActivationType::Bf16 => KvElement::Bf16,
        ActivationType::F16 => KvElement::F16,
    });
    Formats { activation, kv, head_dim: facts.head_dim }
}

fn capacity(
    config: &CudaConfig,
    facts: &ModelFacts,
    context_limit: u32,
    (num_pages, page_bytes, layout): (u32, usize, LayoutId),
) -> Capacity {
    Capacity {
        num_pages,
        page_bytes: page_bytes as u64,
        layout,
        num_layer_groups: 1,
        num_host_pages: config.num_host_pages,
        block_tokens: u32::try_from(BLOCK_TOKENS).expect("sixteen"),
        max_seats: config.max_seats,
        max_step_tokens: config.max_step_tokens,
        max_in_flight: IN_FLIGHT,
        context_limit,
        vocab_size: facts.vocab_size,
    }
}

fn limits(config: &CudaConfig, facts: &ModelFacts, context_limit: u32) -> StepLimits {
    let seats = config.max_seats as usize;
    StepLimits {
        tokens: config.max_step_tokens as usize,
        rows: seats,
        seats,
        max_blocks: (context_limit as usize).div_ceil(BLOCK_TOKENS),
        pages: 0,
        splits: (seats * SPLITS_FOR_EACH_ROW).max((context_limit as usize).div_ceil(SPLIT_POSITIONS)),
        heads_per_kv: facts.num_heads / facts.num_kv_heads,
        window: None,
    }
}

fn check(config: &CudaConfig, facts: &ModelFacts, context_limit: u32) -> Result<(), CudaLoadError> {
    if ![64, 128, 256].contains(&facts.head_dim) {
        return Err(CudaLoadError::HeadDim { head_dim: facts.head_dim });
    }
    for (what, actual, min, max) in [
        ("memory_percent", u64::from(config.memory_percent), 1, 100),
        ("max_seats", config.max_seats.into(), 1, 1024),
        ("max_step_tokens", config.max_step_tokens.into(), 1, 16_384),
        ("context_limit", context_limit.into(), 1, facts.context_limit.into()),
    ] {
        if !(min..=max).contains(&actual) {
            return Err(CudaLoadError::Dial { what, actual, min, max });
        }
    }
    Ok(())
}

/// Bytes that the file's matrices take on the device.
fn weight_bytes(file: &ModelFile) -> u64 {
    let tensors = file.gguf().tensors().iter();
    let bytes =
        tensors.map(|tensor| Weight::device_bytes(tensor.ggml_type, (tensor.rows(), tensor.columns())));
    bytes.map(|bytes| bytes.unwrap_or(usize::MAX) as u64).fold(0, u64::saturating_add)
}
