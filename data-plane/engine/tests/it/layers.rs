//! Small models of random weights on a device, held against the reference: what stands after each layer, in every format.

use std::collections::BTreeMap;

use weir_engine::executor::cpu::{CpuConfig, ReferenceExecutor};
use weir_engine::executor::cuda::{ActivationType, CudaConfig, CudaExecutor, KvElement};
use weir_engine::model::ModelFile;
use weir_engine::{Executor, SamplingParams, SequenceId, TokenId, TokenLogprobs};
use weir_stand_in::StandIn;

use crate::cuda::{answers, config, request};
use crate::test_file::{Shape, TestFile};

/// As many as log-probabilities can be asked for, so that all of them come back.
pub(crate) const VOCAB: u32 = 20;
const CONTEXT: u32 = 512;
/// What allocations are rounded up to.
const GRANULE: usize = 4096;

pub(crate) fn model(layers: u32) -> ModelFile {
    let shape =
        Shape { layers, hidden: 128, heads: 2, kv_heads: 1, inner: 192, vocab: VOCAB, context: CONTEXT };
    // As large as a trained model's: activations keep their size from layer to layer.
    let file = TestFile { largest: 0.15, ..TestFile::llama_of(&shape) };
    ModelFile::from_bytes(file.bytes()).unwrap()
}

type Answer = Vec<(TokenId, Option<TokenLogprobs>)>;
type Answers = BTreeMap<SequenceId, Answer>;

fn on_device(file: &ModelFile, config: &CudaConfig, prompts: &[Vec<TokenId>]) -> Answers {
    answers(CudaExecutor::load_file(file, config).unwrap(), &requests(prompts))
}

fn by_reference(file: &ModelFile, prompts: &[Vec<TokenId>]) -> Answers {
    answers(ReferenceExecutor::load_file(file, &reference_config()).unwrap(), &requests(prompts))
}

pub(crate) fn reference_config() -> CpuConfig {
    CpuConfig {
        threads: 1,
        kv_bytes: 8 << 20,
        max_seats: 2,
        max_step_tokens: 66,
        context_limit: None,
        num_host_pages: 0,
    }
}

fn requests(prompts: &[Vec<TokenId>]) -> Vec<weir_engine::SequenceRequest> {
    let all = SamplingParams { logprobs: Some(VOCAB), ..SamplingParams::GREEDY };
    prompts.iter().map(|prompt| request(prompt, 3, all)).collect()
}

/// Tokens from 0 to 19 without a pattern.
pub(crate) fn prompt(len: u32, seed: u32) -> Vec<TokenId> {
    (0..len).map(|at| (at * at * 7 + at * 3 + seed) % 97 % VOCAB).collect()
}

/// The largest difference between the log-probabilities of any token; all of those before the first token that differs.
fn largest_difference(ours: &Answers, theirs: &Answers) -> f32 {
    let by_token =
        |logprobs: &TokenLogprobs| logprobs.top.iter().copied().collect::<BTreeMap<TokenId, f32>>();
    let mut largest = 0.0_f32;
    for (ours, theirs) in ours.values().zip(theirs.values()) {
        assert_eq!(ours.len(), theirs.len());
        for ((our_token, our_logprobs), (their_token, their_logprobs)) in ours.iter().zip(theirs) {
            let (our, their) =
                (by_token(our_logprobs.as_ref().unwrap()), by_token(their_logprobs.as_ref().unwrap()));
            assert_eq!((our.len(), their.len()), (VOCAB as usize, VOCAB as usize));
            for (token, logprob) in &our {
                largest = largest.max((logprob - their[token]).abs());
            }
            if our_token != their_token {
                println!("they part at a margin of {}", (their[our_token] - their[their_token]).abs());
                break;
            }
        }
    }
    largest
}

/// The formats, and how far a log-probability may be from the reference's after any layer: eight times the rounding of an
/// activation (2^-11 and 2^-8), or twice that of a key or value in eight bits (2^-4).
const FORMATS: [(ActivationType, KvElement, f32); 3] = [
    (ActivationType::F16, KvElement::F16, 0.004),
    (ActivationType::Bf16, KvElement::Bf16, 0.03),
    (ActivationType::F16, KvElement::E4m3, 0.125),
];

#[test]
fn logits_agree_with_the_reference_after_every_layer() {
    let stand_in = StandIn::load();
    let prompts = [prompt(37, 1), prompt(5, 2)];
    for layers in 1..=4 {
        let file = model(layers);
        let reference = by_reference(&file, &prompts);
        for (activation, kv, tolerance) in FORMATS {
            let config = CudaConfig { activation: Some(activation), kv: Some(kv), ..config() };
            let differs = largest_difference(&on_device(&file, &config, &prompts), &reference);
            println!("{layers} layers, {activation:?}, {kv:?}: {differs}");
            assert!(differs <= tolerance, "{layers} {activation:?} {kv:?}: {differs}");
        }
    }
    assert_eq!(stand_in.message(), "");
}

/// Eight entries of block tables fit into a step of this size, and the cached prefix has eighteen blocks.
#[test]
fn a_long_cached_prefix_is_seated_whole() {
    let stand_in = StandIn::load();
    let file = model(1);
    let config = CudaConfig { context_limit: Some(CONTEXT), ..config() };
    let long = prompt(300, 3);
    let twice = answers_in_turn(&file, &config, &long);
    assert_eq!(twice[0], twice[1], "from the cache as computed");
    let prompts = [long];
    let differs = largest_difference(&on_device(&file, &config, &prompts), &by_reference(&file, &prompts));
    assert!(differs < 0.03, "in bf16, as above: {differs}");
    assert_eq!(stand_in.message(), "");
}

/// Recorded graphs take memory too: the pool gets what is left after them, and no more.
#[test]
fn the_pool_takes_what_graphs_leave_within_the_dial() {
    let stand_in = StandIn::load();
    let memory = 200 << 20;
    stand_in.set_memory(memory);
    let config = CudaConfig { memory_percent: 40, max_seats: 24, max_step_tokens: 96, ..config() };
    let executor = CudaExecutor::load_file(&model(4), &config).unwrap();
    let (used, allowed) = (stand_in.used_memory(), memory / 100 * 40);
    assert!(used <= allowed, "{used} of {allowed}");
    let spare = usize::try_from(executor.capacity().page_bytes).unwrap() + GRANULE;
    assert!(used + spare > allowed, "{used} of {allowed}");
    drop(executor);
    assert_eq!(stand_in.used_memory(), 0);
}

/// The same request twice on one engine, the second after the first.
fn answers_in_turn(file: &ModelFile, config: &CudaConfig, prompt: &[TokenId]) -> [Answer; 2] {
    let mut engine = crate::cuda::engine(CudaExecutor::load_file(file, config).unwrap());
    let request = requests(&[prompt.to_vec()]).remove(0);
    let requests = std::slice::from_ref(&request);
    let answers = [(); 2].map(|()| crate::cuda::run(&mut engine, requests).into_values().next().unwrap());
    assert!(engine.counters().cached_prompt_tokens >= 288, "{:?}", engine.counters());
    answers
}
