//! Models of random weights, with which devices are measured.

use std::time::Duration;

use weir_engine::executor::cuda::{CudaConfig, CudaExecutor, random_weight_bytes};
use weir_engine::model::ModelFacts;
use weir_engine::{Executor, SamplingParams};
use weir_kernels::cuda::ops::ActivationType;
use weir_kernels::quant::GgmlType;
use weir_stand_in::StandIn;

use crate::cuda::{answers, request};

fn facts() -> ModelFacts {
    ModelFacts {
        architecture: "llama".to_owned(),
        name: None,
        dtype: String::new(),
        parameter_count: 0,
        context_limit: 256,
        num_layers: 2,
        hidden_dim: 128,
        feed_forward_dim: 192,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 64,
        vocab_size: 320,
        rms_epsilon: 1e-5,
        rope_base: 10_000.0,
    }
}

fn config() -> CudaConfig {
    CudaConfig {
        ordinal: 0,
        activation: Some(ActivationType::Bf16),
        kv: None,
        memory_percent: 10,
        max_seats: 3,
        max_step_tokens: 67,
        context_limit: None,
        num_host_pages: 0,
        step_timeout: Duration::from_secs(60),
        reproducible: true,
    }
}

#[test]
fn recorded_steps_give_what_launched_ones_give() {
    for ggml_type in [GgmlType::BF16, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q8_0] {
        let stand_in = StandIn::load();
        let load = || CudaExecutor::random(&facts(), ggml_type, &config()).unwrap();
        let requests: Vec<_> = [vec![1, 2, 3], vec![300; 70], vec![7]]
            .iter()
            .map(|prompt| request(prompt, 4, SamplingParams { logprobs: Some(2), ..SamplingParams::GREEDY }))
            .collect();
        let launched = answers(load().without_graphs(), &requests);
        assert_eq!(stand_in.calls("cuGraphLaunch"), 0);
        let recorded = answers(load(), &requests);
        assert!(stand_in.calls("cuGraphLaunch") > 0);
        assert_eq!(recorded, launched, "{ggml_type:?}");
        let logprobs = recorded.values().flatten().map(|(_, logprobs)| logprobs.as_ref().unwrap().chosen);
        assert!(logprobs.into_iter().all(|logprob| (-6.0..-0.5).contains(&logprob)), "{recorded:?}");
        assert_eq!(stand_in.message(), "");
    }
}

#[test]
fn weights_take_the_memory_that_is_said() {
    let stand_in = StandIn::load();
    let matrices = 2 * 320 * 128 + 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 192);
    assert_eq!(random_weight_bytes(&facts(), GgmlType::BF16), 2 * matrices);
    assert_eq!(random_weight_bytes(&facts(), GgmlType::Q4_0), matrices / 32 * 18);
    assert_eq!(random_weight_bytes(&facts(), GgmlType::Q8_0), matrices / 32 * 34);
    stand_in.set_memory(4 << 20);
    let capacity =
        CudaExecutor::random(&facts(), GgmlType::Q4_0, &CudaConfig { memory_percent: 90, ..config() });
    assert!(capacity.is_ok_and(|executor| executor.capacity().num_pages > 16));
}
