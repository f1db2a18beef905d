//! The CUDA executor, on the stand-in driver.

use weir_engine::executor::cpu::ReferenceExecutor;
use weir_engine::executor::cuda::{CudaConfig, CudaExecutor};
use weir_engine::model::ModelFile;
use weir_engine::{
    Class, Commit, Engine, EngineConfig, Executor, SamplingParams, SequenceEvent, SequenceRequest,
    TenantIndex, TokenId, Verdict,
};
use weir_kernels::cuda::ops::{ActivationType, KvElement};

use crate::golden::fixture::model_path;

struct Free;

impl Commit for Free {
    fn commit(&mut self, _token: TokenId) -> Verdict {
        Verdict::Continue
    }
}

fn greedy(prompt: &[TokenId], max_tokens: u32) -> SequenceRequest {
    SequenceRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        sampling: SamplingParams::GREEDY,
        logit_bias: Vec::new(),
        is_constrained: false,
        stop_tokens: Vec::new(),
        cache_salt: [0; 32],
        tenant: TenantIndex(0),
        tenant_weight: 1,
        class: Class::Interactive,
    }
}

fn answer<X: Executor>(executor: X, prompt: &[TokenId], max_tokens: u32) -> Vec<TokenId> {
    let mut engine = Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor).unwrap();
    engine.add(greedy(prompt, max_tokens), Box::new(Free)).unwrap();
    let mut tokens = Vec::new();
    while engine.has_work() {
        for event in engine.step().unwrap().events {
            if let SequenceEvent::Token { token, .. } = event {
                tokens.push(token);
            }
        }
    }
    tokens
}

#[test]
fn smollm2_answers_as_the_reference_does() {
    let file = ModelFile::open(&model_path()).unwrap();
    let config = CudaConfig {
        ordinal: 0,
        kernels: Some(b"\x7fELF".to_vec()),
        activation: ActivationType::F16,
        kv: KvElement::F16,
        memory_percent: 10,
        max_seats: 2,
        max_step_tokens: 66,
        context_limit: Some(128),
        num_host_pages: 1,
    };
    let prompt = [9059, 8331];
    let started = std::time::Instant::now();
    let executor = CudaExecutor::load_file(&file, &config).unwrap();
    println!("loaded in {:?}", started.elapsed());
    let tokens = answer(executor, &prompt, 6);
    println!("{:?} {tokens:?}", started.elapsed());
    let reference = ReferenceExecutor::load_file(&file, &crate::golden::fixture::config()).unwrap();
    assert_eq!(tokens, answer(reference, &prompt, 6));
}
