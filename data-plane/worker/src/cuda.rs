//! The GPU: as an operator configures it, and whether this machine has one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
#[cfg(feature = "cuda")]
use weir_engine::executor::cuda::{ProbeError, probe};
use weir_schemas::rpc::setting::{self, SettingError};

/// Share of the device's memory that may be in use when all is loaded: the rest is for the driver and its libraries.
const DEFAULT_MEMORY_PERCENT: u8 = 90;
/// Some ten times the longest step of a large model.
const DEFAULT_STEP_TIMEOUT_MS: u64 = 30_000;

/// The GPU as it stands in the file: `[worker.cuda]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawCuda {
    /// Index among the devices that this process sees.
    pub ordinal: u32,
    /// Share of the device's memory that may be in use when all is loaded, in hundredths; the KV pool takes what weights,
    /// workspace and graphs leave of it.
    pub memory_percent: u8,
    /// Format of activations, and of weights that do not stay packed.
    pub dtype: Dtype,
    /// Format of keys and values.
    pub kv_cache_dtype: KvDtype,
    /// A step that takes longer means that the device hangs: the worker ends, so that others take over.
    pub step_timeout_ms: u64,
    /// A request's tokens depend on nothing beside it, not even where cuBLASLt would be faster.
    pub reproducible: bool,
}

/// Format of activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// By the model file: bf16 if it has matrices in bf16 or f32, else f16.
    #[default]
    Auto,
    /// The range of f32, eight bits of mantissa.
    Bf16,
    /// Eleven bits of mantissa, up to 65504.
    F16,
}

/// Format of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    /// As activations.
    #[default]
    Auto,
    /// Two bytes.
    Bf16,
    /// Two bytes.
    F16,
    /// One byte: twice the context in the same memory, less exact.
    Fp8E4m3,
}

impl Default for RawCuda {
    fn default() -> Self {
        Self {
            ordinal: 0,
            memory_percent: DEFAULT_MEMORY_PERCENT,
            dtype: Dtype::default(),
            kv_cache_dtype: KvDtype::default(),
            step_timeout_ms: DEFAULT_STEP_TIMEOUT_MS,
            reproducible: false,
        }
    }
}

/// The checked section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cuda {
    pub(crate) ordinal: usize,
    pub(crate) memory_percent: u8,
    pub(crate) dtype: Dtype,
    pub(crate) kv_cache_dtype: KvDtype,
    pub(crate) step_timeout: Duration,
    pub(crate) reproducible: bool,
}

impl TryFrom<RawCuda> for Cuda {
    type Error = SettingError;

    fn try_from(raw: RawCuda) -> Result<Self, SettingError> {
        let RawCuda { ordinal, memory_percent, dtype, kv_cache_dtype, step_timeout_ms, reproducible } = raw;
        setting::in_range("cuda.ordinal", ordinal.into(), 0, 1023)?;
        setting::in_range("cuda.memory_percent", memory_percent.into(), 1, 100)?;
        setting::in_range("cuda.step_timeout_ms", step_timeout_ms, 100, 3_600_000)?;
        Ok(Self {
            ordinal: ordinal as usize,
            memory_percent,
            dtype,
            kv_cache_dtype,
            step_timeout: Duration::from_millis(step_timeout_ms),
            reproducible,
        })
    }
}

/// Why this process cannot use a GPU, in words for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// The device or its driver.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Built without it.
    #[error("this build has no CUDA backend (feature `cuda`)")]
    NotBuilt,
}

impl NoGpu {
    /// There is nothing that an operator would expect to be used.
    pub(crate) fn is_plain_absence(&self) -> bool {
        match self {
            #[cfg(feature = "cuda")]
            Self::Probe(error) => {
                matches!(error, ProbeError::NoLibrary { reason } if reason.contains("No such file"))
            }
            Self::NotBuilt => true,
        }
    }
}

impl Cuda {
    /// The name of the device, if it can be used.
    #[cfg(feature = "cuda")]
    pub(crate) fn probe(&self) -> Result<String, NoGpu> {
        Ok(probe(self.ordinal)?.name)
    }

    /// The name of the device, if it can be used.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn probe(&self) -> Result<String, NoGpu> {
        Err(NoGpu::NotBuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_value_names_its_key() {
        let key = |change: fn(&mut RawCuda)| {
            let mut raw = RawCuda::default();
            change(&mut raw);
            Cuda::try_from(raw).unwrap_err().to_string()
        };
        assert!(key(|raw| raw.memory_percent = 0).contains("cuda.memory_percent"));
        assert!(key(|raw| raw.memory_percent = 101).contains("cuda.memory_percent"));
        assert!(key(|raw| raw.ordinal = 5000).contains("cuda.ordinal"));
        assert!(key(|raw| raw.step_timeout_ms = 0).contains("cuda.step_timeout_ms"));
    }

    #[test]
    fn formats_have_the_names_that_the_file_uses() {
        let raw: RawCuda = serde_json::from_str(r#"{"dtype":"bf16","kv_cache_dtype":"fp8_e4m3"}"#).unwrap();
        assert_eq!((raw.dtype, raw.kv_cache_dtype), (Dtype::Bf16, KvDtype::Fp8E4m3));
        assert!(serde_json::from_str::<RawCuda>(r#"{"dtype":"int8"}"#).is_err());
    }
}
