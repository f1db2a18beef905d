//! Models of random weights.

use std::time::Duration;

use weir_engine::executor::cuda::CudaConfig;
use weir_engine::model::ModelFacts;
use weir_kernels::cuda::ops::{ActivationType, KvElement};

/// The shape of Llama 3 8B, or one that a CPU can pretend to run.
pub(crate) fn llama_8b(is_tiny: bool) -> ModelFacts {
    let tiny_or = |tiny: usize, full: usize| if is_tiny { tiny } else { full };
    ModelFacts {
        architecture: "llama".to_owned(),
        name: Some("random weights".to_owned()),
        dtype: String::new(),
        parameter_count: 0,
        context_limit: 8192,
        num_layers: tiny_or(2, 32),
        hidden_dim: tiny_or(128, 4096),
        feed_forward_dim: tiny_or(192, 14_336),
        num_heads: tiny_or(2, 32),
        num_kv_heads: tiny_or(1, 8),
        head_dim: tiny_or(64, 128),
        vocab_size: if is_tiny { 320 } else { 128_256 },
        rms_epsilon: 1e-5,
        rope_base: 500_000.0,
    }
}

/// Dials for so many sequences at once.
pub(crate) fn config(is_tiny: bool, max_seats: u32, max_step_tokens: u32, context_limit: u32) -> CudaConfig {
    CudaConfig {
        ordinal: 0,
        activation: Some(ActivationType::Bf16),
        kv: Some(KvElement::Bf16),
        memory_percent: if is_tiny { 20 } else { 90 },
        max_seats,
        max_step_tokens,
        context_limit: Some(context_limit),
        num_host_pages: 0,
        step_timeout: Duration::from_secs(60),
        reproducible: true,
    }
}
