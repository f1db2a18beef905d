//! One safe operation for each kernel. Arrays are row-major; lengths that do not fit together are bugs and panic before
//! anything is submitted. Every operation is submitted to the device's stream and returns at once.
//!
//! A decode or prefill step over `tokens` rows of `hidden_dim` reads:
//!
//! | operation | reads | writes |
//! | --- | --- | --- |
//! | [`Operations::embed`] | the step's tokens, or its seats' last ones | `hidden` f32 `[tokens, hidden_dim]` |
//! | [`Operations::rms_norm`] | f32 `[rows, dim]` | activations `[rows, dim]` |
//! | [`Operations::matmul`] | activations `[rows, k]`, [`Weight`] `[n, k]` | columns of an [`Output`] |
//! | [`Operations::rope_table`] | the tokens' positions | f32 `[tokens, rope_dim / 2, 2]` |
//! | [`Operations::rope_store`] | `qkv` `[tokens, (heads + 2 kv_heads) · head_dim]` | `qkv`'s queries, the pages |
//! | [`Operations::attention`] | `qkv`, the pages | activations `[tokens, heads · head_dim]` |
//! | [`Operations::gated`] | activations `[rows, 2, columns]` | activations `[rows, columns]` |
//! | [`Operations::gather`] | f32 `[tokens, dim]` | f32 `[samples, dim]` |
//! | [`Operations::sample`] | logits f32 `[samples, vocab_size]` | tokens i32 `[samples]`, the seats' last tokens |
//! | [`Operations::copy_pages`] | pages | pages |
//!
//! Activations are 16-bit elements of one [`ActivationType`]. The residual stream is f32: a decode step reads and writes it
//! a few times a layer beside weights that are a thousand times larger, so that the exactness costs nothing one can
//! measure, and the sum over layers is as the reference has it.

mod attention;
mod dense;
mod formats;
mod library;
mod matmul;
mod pages;
mod repack;
mod sampling;
mod step;
mod weight;

pub use attention::{AttentionScratch, AttentionShape, RopeParameters, SPLIT_POSITIONS};
pub use dense::Gate;
pub use formats::{ActivationType, Formats, KvElement};
pub use matmul::{LIBRARY_ROWS_MIN, Multiplier, Output};
pub use pages::DevicePages;
pub use sampling::{BIAS_MAX, SeatParameters, SeatTables, TOP_LOGPROBS_MAX};
pub use step::{PageEntry, StepInputs, StepLimits, StepRow, StepSample};
pub use weight::{Weight, WeightError};

use std::collections::HashSet;

use super::launch::{Kernel, Launch};
use super::{CudaError, Device};

/// The kernels for one choice of formats, found in the device's module once.
#[derive(Debug)]
pub struct Operations {
    device: Device,
    formats: Formats,
    dense: dense::Kernels,
    matmul: matmul::Kernels,
    attention: attention::Kernels,
    pages: pages::Kernels,
    sampling: sampling::Kernels,
    library: Option<library::Library>,
    /// Shapes of products, (n, k, kind of output), that the library computes in large steps.
    by_library: HashSet<(usize, usize, usize)>,
}

impl Operations {
    /// Finds the kernels.
    ///
    /// # Errors
    /// [`CudaError::Image`] if one is missing: the kernels are of another version.
    pub fn load(device: &Device, formats: Formats) -> Result<Self, CudaError> {
        Ok(Self {
            device: device.clone(),
            formats,
            dense: dense::Kernels::load(device, formats)?,
            matmul: matmul::Kernels::load(device, formats)?,
            attention: attention::Kernels::load(device, formats)?,
            pages: pages::Kernels::load(device)?,
            sampling: sampling::Kernels::load(device)?,
            library: None,
            by_library: HashSet::new(),
        })
    }

    /// Opens cuBLASLt too, where it is installed; [`Operations::choose_multiplier`] then says what it is used for.
    ///
    /// # Errors
    /// [`CudaError`] if it is there and does not work, or its workspace does not fit.
    pub fn with_library(mut self) -> Result<Self, CudaError> {
        self.library = library::Library::open(&self.device)?;
        Ok(self)
    }

    /// Whether cuBLASLt is open.
    pub fn has_library(&self) -> bool {
        self.library.is_some()
    }

    /// The device that they run on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What they were chosen by.
    pub fn formats(&self) -> Formats {
        self.formats
    }

    fn launch<'a>(&'a self, kernel: &'a Kernel) -> Launch<'a> {
        Launch::of(&self.device, kernel)
    }
}
