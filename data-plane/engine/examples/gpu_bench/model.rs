//! Models of random weights.

use std::time::Duration;

use weir_engine::executor::cuda::CudaConfig;
use weir_engine::model::ModelFacts;
use weir_engine::{Class, Commit, SamplingParams, SequenceRequest, TenantIndex, TokenId, Verdict};
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

/// Takes every token: there is no text.
pub(crate) struct TakeAll;

impl Commit for TakeAll {
    fn commit(&mut self, _: TokenId) -> Verdict {
        Verdict::Continue
    }
}

/// A prompt of `prompt_tokens` that shares no block with those of other streams, so that nothing comes from the prefix
/// cache.
pub(crate) fn prompt(stream: u32, prompt_tokens: u32, vocab_size: u32) -> Vec<TokenId> {
    (0..prompt_tokens).map(|position| (stream * 7919 + position * 104_729 + 17) % vocab_size).collect()
}

pub(crate) fn request(prompt: Vec<TokenId>, max_tokens: u32, sampling: SamplingParams) -> SequenceRequest {
    SequenceRequest {
        prompt,
        max_tokens,
        sampling,
        logit_bias: Vec::new(),
        is_constrained: false,
        stop_tokens: Vec::new(),
        cache_salt: [0; 32],
        tenant: TenantIndex(0),
        tenant_weight: 1,
        class: Class::Interactive,
    }
}
