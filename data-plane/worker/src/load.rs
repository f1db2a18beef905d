//! Loading one version: verify the file, take its text out, load the weights, start its engine. Blocks for seconds;
//! runs on a thread for blocking work.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use weir_engine::engine::Engine;
use weir_engine::executor::cpu::{CpuConfig, CpuExecutor};
#[cfg(feature = "cuda")]
use weir_engine::executor::cuda::{ActivationType, CudaConfig, CudaExecutor, CudaLoadError, KvElement};
use weir_engine::executor::sim::{SimConfig, SimExecutor};
use weir_engine::model::{LoadError as ModelError, ModelFile};
use weir_engine::{EngineConfig, EngineError, Executor};
use weir_schemas::config_snapshot::PinnedVersion;
use weir_text::TextModel;

use crate::artifact::{ArtifactError, ArtifactStore, model_text};
use crate::config::KvMemory;
use crate::cuda::Cuda;
#[cfg(feature = "cuda")]
use crate::cuda::{Dtype, KvDtype};
use crate::device::{Device, Sim};
use crate::host::{self, EngineHandle};
use crate::memory;
use crate::metrics::Metrics;
use crate::versions::LoadedVersion;

/// Used where `/proc` tells no memory size: enough for one request of a small model.
const KV_BYTES_UNKNOWN_MACHINE: u64 = 512 << 20;

/// Why a version did not load. Shown to the operator as the version's state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    #[error("the engine cannot load {path}")]
    Model {
        path: String,
        #[source]
        source: ModelError,
    },
    #[cfg(feature = "cuda")]
    #[error("the GPU cannot serve {path}")]
    Cuda {
        path: String,
        #[source]
        source: CudaLoadError,
    },
    #[cfg(not(feature = "cuda"))]
    #[error(transparent)]
    NoGpu(#[from] crate::cuda::NoGpu),
    #[error("the engine cannot start")]
    Engine(#[from] EngineError),
    #[error("no thread for the step loop")]
    Thread(#[source] std::io::Error),
}

impl LoadError {
    /// The whole chain in one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// What every load on this worker has in common.
#[derive(Debug)]
pub(crate) struct Loader {
    pub(crate) artifacts: ArtifactStore,
    /// Never [`Device::Auto`].
    pub(crate) device: Device,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "this build serves from no GPU"))]
    pub(crate) cuda: Cuda,
    pub(crate) sim: Sim,
    pub(crate) threads: usize,
    pub(crate) kv_memory: KvMemory,
    pub(crate) max_seats: u32,
    pub(crate) step_tokens: u32,
    pub(crate) metrics: Metrics,
    /// Set by a step loop whose device is lost, when its records are closed.
    pub(crate) device_lost: CancellationToken,
}

impl Loader {
    /// Loads a version and starts its step loop.
    pub(crate) fn load(&self, pinned: &PinnedVersion) -> Result<LoadedVersion, LoadError> {
        let path = self.artifacts.verify(&pinned.weights_uri, &pinned.digest)?;
        let model_error = |source| LoadError::Model { path: path.display().to_string(), source };
        let file = ModelFile::open(&path).map_err(model_error)?;
        let text = model_text(&file, &path)?;
        let (text_bytes, text_digest) = (text.to_bytes(), text.digest());
        if text_digest != pinned.tokenizer_digest {
            let (path, wanted) = (path.display().to_string(), pinned.tokenizer_digest.clone());
            return Err(ArtifactError::TokenizerDigest { path, actual: text_digest, wanted }.into());
        }
        let text = TextModel::new(text)
            .map_err(|source| ArtifactError::Text { path: path.display().to_string(), source })?;
        let (device, text) = (self.device, Arc::new(text));
        let engine = match device {
            Device::Auto | Device::Cpu => {
                let executor =
                    CpuExecutor::load_file(&file, &self.cpu_config(pinned)).map_err(model_error)?;
                tracing::info!(version = %pinned.id, isa = executor.isa_name(), "{}", executor.kv_capacity());
                self.serve(executor, text, pinned)?
            }
            Device::Cuda => self.serve_from_gpu(&file, text, pinned)?,
            Device::Sim => {
                tracing::warn!(version = %pinned.id, "the device is simulated: answers are noise");
                self.serve(SimExecutor::new(self.sim_config(&file, pinned)), text, pinned)?
            }
        };
        Ok(LoadedVersion { engine, device, text_bytes, text_digest })
    }

    fn serve<X: Executor + 'static>(
        &self,
        executor: X,
        text: Arc<TextModel>,
        pinned: &PinnedVersion,
    ) -> Result<EngineHandle, LoadError> {
        let (executor, clock) = host::timed(executor, Instant::now);
        let capacity = executor.capacity();
        let config = match self.device {
            Device::Cuda => EngineConfig::for_accelerator(&capacity),
            Device::Auto | Device::Cpu | Device::Sim => EngineConfig::for_capacity(&capacity),
        };
        let engine = Engine::new(config, executor)?;
        let lost = self.device_lost.clone();
        host::spawn(engine, clock, text, &pinned.id.to_string(), self.metrics.engine(pinned.id), lost)
            .map_err(LoadError::Thread)
    }

    #[cfg(not(feature = "cuda"))]
    fn serve_from_gpu(
        &self,
        _file: &ModelFile,
        _text: Arc<TextModel>,
        _pinned: &PinnedVersion,
    ) -> Result<EngineHandle, LoadError> {
        Err(crate::cuda::NoGpu::NotBuilt.into())
    }

    #[cfg(feature = "cuda")]
    fn serve_from_gpu(
        &self,
        file: &ModelFile,
        text: Arc<TextModel>,
        pinned: &PinnedVersion,
    ) -> Result<EngineHandle, LoadError> {
        let Cuda { ordinal, memory_percent, dtype, kv_cache_dtype, step_timeout, reproducible } = self.cuda;
        let config = CudaConfig {
            ordinal,
            activation: match dtype {
                Dtype::Auto => None,
                Dtype::Bf16 => Some(ActivationType::Bf16),
                Dtype::F16 => Some(ActivationType::F16),
            },
            kv: match kv_cache_dtype {
                KvDtype::Auto => None,
                KvDtype::Bf16 => Some(KvElement::Bf16),
                KvDtype::F16 => Some(KvElement::F16),
                KvDtype::Fp8E4m3 => Some(KvElement::E4m3),
            },
            memory_percent,
            max_seats: self.max_seats,
            max_step_tokens: self.step_tokens,
            context_limit: Some(pinned.context_limit.min(file.facts().context_limit)),
            num_host_pages: 0,
            step_timeout,
            reproducible,
        };
        let executor = CudaExecutor::load_file(file, &config)
            .map_err(|source| LoadError::Cuda { path: pinned.weights_uri.clone(), source })?;
        self.serve(executor, text, pinned)
    }

    /// No weights: the file only tells what tokens and positions there are.
    fn sim_config(&self, file: &ModelFile, pinned: &PinnedVersion) -> SimConfig {
        let facts = file.facts();
        SimConfig {
            num_pages: self.sim.num_pages,
            max_seats: self.max_seats,
            max_step_tokens: self.step_tokens,
            context_limit: pinned.context_limit.min(facts.context_limit),
            vocab_size: facts.vocab_size,
            cost: self.sim.cost,
        }
    }

    fn cpu_config(&self, pinned: &PinnedVersion) -> CpuConfig {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        CpuConfig {
            threads: if self.threads == 0 { cores } else { self.threads },
            kv_bytes: self.kv_bytes(),
            max_seats: self.max_seats,
            max_step_tokens: self.step_tokens,
            context_limit: Some(pinned.context_limit),
            num_host_pages: 0,
        }
    }

    fn kv_bytes(&self) -> u64 {
        match self.kv_memory {
            KvMemory::Bytes(bytes) => bytes,
            KvMemory::Share { percent, max_bytes } => match memory::limit() {
                Some(limit) => {
                    let bytes = (limit.bytes / 100 * u64::from(percent)).min(max_bytes);
                    tracing::info!(
                        kv_bytes = bytes,
                        percent,
                        allowed_bytes = limit.bytes,
                        source = limit.source,
                        "the KV pool takes its share of the memory that this process may use"
                    );
                    bytes
                }
                None => KV_BYTES_UNKNOWN_MACHINE,
            },
        }
    }
}
