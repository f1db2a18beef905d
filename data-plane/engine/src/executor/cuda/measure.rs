//! What measurements need and serving does not: a model without a file, steps without graphs.

use std::convert::Infallible;

use weir_kernels::cuda::ops::Weight;
use weir_kernels::quant::GgmlType;

use super::{CudaConfig, CudaExecutor, CudaLoadError};
use crate::model::weights::Weights;
use crate::model::{LoadError, ModelFacts};

impl CudaExecutor {
    /// A model of this shape with random weights of a type, as that type is kept on the device.
    ///
    /// # Errors
    /// [`CudaLoadError`], as for a file.
    pub fn random(
        facts: &ModelFacts,
        ggml_type: GgmlType,
        config: &CudaConfig,
    ) -> Result<Self, CudaLoadError> {
        let mut seed = 0;
        Self::load(
            facts,
            random_weight_bytes(facts, ggml_type),
            |operations| {
                Weights::made(facts, |rows, columns| {
                    seed += 1;
                    let (device, activation) = (operations.device(), operations.formats().activation);
                    Weight::random(device, activation, ggml_type, (rows, columns), seed)
                })
                .map_err(|error| LoadError::Kernels {
                    what: "a random matrix".to_owned(),
                    reason: error.to_string(),
                })
            },
            config,
        )
    }

    /// The same executor with every step launched operation by operation.
    #[must_use]
    pub fn without_graphs(mut self) -> Self {
        self.graphs.clear();
        self
    }
}

/// Bytes on the device of the matrices of [`CudaExecutor::random`].
pub fn random_weight_bytes(facts: &ModelFacts, ggml_type: GgmlType) -> u64 {
    let mut bytes = 0_u64;
    let counted = Weights::made(facts, |rows, columns| {
        let matrix = Weight::device_bytes(ggml_type, (rows, columns)).unwrap_or(usize::MAX);
        bytes = bytes.saturating_add(matrix as u64);
        Ok::<(), Infallible>(())
    });
    counted.map_or(u64::MAX, |_| bytes)
}
