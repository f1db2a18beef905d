//! The CUDA executor under the real engine, on a driver that runs its kernels on the CPU.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_engine::executor::cpu::ReferenceExecutor;
use weir_engine::executor::cuda::{CudaConfig, CudaExecutor, CudaLoadError};
use weir_engine::model::ModelFile;
use weir_engine::{
    Commit, Engine, EngineConfig, Executor, FinishReason, SamplingParams, SequenceEvent, SequenceId,
    SequenceRequest, TokenId, TokenLogprobs, Verdict,
};
use weir_stand_in::{Failure, StandIn};

use crate::golden::fixture::{config as reference_config, golden, model_path};

/// Most that a log-probability may differ from the reference's: activations are rounded to sixteen bits some 200 times.
const LOGPROB_TOLERANCE: f32 = 0.05;

pub(crate) struct Free;

impl Commit for Free {
    fn commit(&mut self, _token: TokenId) -> Verdict {
        Verdict::Continue
    }
}

pub(crate) fn config() -> CudaConfig {
    CudaConfig {
        ordinal: 0,
        activation: None,
        kv: None,
        memory_percent: 10,
        max_seats: 2,
        max_step_tokens: 66,
        context_limit: Some(128),
        num_host_pages: 1,
        step_timeout: Duration::from_secs(60),
        reproducible: true,
    }
}

pub(crate) fn request(prompt: &[TokenId], max_tokens: u32, sampling: SamplingParams) -> SequenceRequest {
    SequenceRequest::new(prompt.to_vec(), max_tokens, sampling)
}

/// Tokens and log-probabilities of each request, all of them running together.
pub(crate) fn answers<X: Executor>(
    executor: X,
    requests: &[SequenceRequest],
) -> BTreeMap<SequenceId, Vec<(TokenId, Option<TokenLogprobs>)>> {
    run(&mut engine(executor), requests)
}

pub(crate) fn engine<X: Executor>(executor: X) -> Engine<X, Box<dyn Commit>> {
    Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor).unwrap()
}

/// The same on an engine that may have run others before.
pub(crate) fn run<X: Executor>(
    engine: &mut Engine<X, Box<dyn Commit>>,
    requests: &[SequenceRequest],
) -> BTreeMap<SequenceId, Vec<(TokenId, Option<TokenLogprobs>)>> {
    let commits = requests.iter().map(|_| Box::new(Free) as Box<dyn Commit>).collect();
    run_with(engine, requests, commits)
}

/// The same with what decides about each one's tokens.
pub(crate) fn run_with<X: Executor>(
    engine: &mut Engine<X, Box<dyn Commit>>,
    requests: &[SequenceRequest],
    commits: Vec<Box<dyn Commit>>,
) -> BTreeMap<SequenceId, Vec<(TokenId, Option<TokenLogprobs>)>> {
    let mut answers = BTreeMap::new();
    for (request, commit) in requests.iter().zip(commits) {
        answers.insert(engine.add(request.clone(), commit).unwrap(), Vec::new());
    }
    while engine.has_work() {
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        for event in events {
            match event {
                SequenceEvent::Token { id, token, logprobs } => {
                    answers.get_mut(&id).unwrap().push((token, logprobs.map(|logprobs| *logprobs)));
                }
                SequenceEvent::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
            }
        }
    }
    answers
}

/// A greedy answer and a drawn one, prompts chunked beside decodes, decodes as recorded graphs, tokens fed from their seats.
#[test]
fn smollm2_answers_as_the_reference_does() {
    let stand_in = StandIn::load();
    let file = ModelFile::open(&model_path()).unwrap();
    let golden = golden();
    let prompt = &golden.prompts.iter().min_by_key(|prompt| prompt.ids.len()).unwrap().ids;
    let drawn = SamplingParams {
        temperature: 0.7,
        top_p: 0.9,
        top_k: 50,
        seed: 7,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        ..SamplingParams::GREEDY
    };
    let requests = [
        request(prompt, 4, SamplingParams { logprobs: Some(3), ..SamplingParams::GREEDY }),
        request(prompt, 3, drawn),
    ];
    let executor = CudaExecutor::load_file(&file, &config()).unwrap();
    let mut engine = engine(executor);
    let waits = stand_in.waits();
    let asked = stand_in.calls("cuEventQuery");
    let on_device = run(&mut engine, &requests);
    assert!(stand_in.calls("cuGraphLaunch") > 0, "decodes are graphs");
    assert_eq!(stand_in.message(), "");
    assert_eq!(stand_in.waits(), waits, "nothing waits in the driver, also not to give memory back");
    assert!(stand_in.calls("cuEventQuery") > asked, "collect asks an event instead");
    let reference = answers(ReferenceExecutor::load_file(&file, &reference_config()).unwrap(), &requests);
    for (of_device, of_reference) in on_device.values().zip(reference.values()) {
        assert_eq!(of_device.len(), of_reference.len());
        for ((token, ours), (expected, theirs)) in of_device.iter().zip(of_reference) {
            let (Some(ours), Some(theirs)) = (ours, theirs) else {
                assert_eq!(token, expected, "drawn with the same noise");
                continue;
            };
            let margin = theirs.top[0].1 - theirs.top[1].1;
            if token != expected {
                println!("{token} in place of {expected}: they part at a margin of {margin}");
                assert!(margin < 2.0 * LOGPROB_TOLERANCE, "{ours:?} {theirs:?}");
                break;
            }
            assert!((ours.chosen - theirs.chosen).abs() < LOGPROB_TOLERANCE, "{ours:?} {theirs:?}");
        }
    }
}

#[test]
fn a_device_that_fails_is_a_fatal_error_and_no_panic() {
    let stand_in = StandIn::load();
    let file = ModelFile::open(&model_path()).unwrap();
    let executor = CudaExecutor::load_file(&file, &config()).unwrap();
    let mut engine = engine(executor);
    engine.add(request(&[1, 2, 3], 4, SamplingParams::GREEDY), Box::new(Free)).unwrap();
    stand_in.fail_execution(20, Failure::IllegalAddress);
    let mut ends = Vec::new();
    let error = std::iter::repeat_with(|| engine.step(&mut ends)).take(3).find_map(Result::err).unwrap();
    assert!(error.is_fatal(), "{error}");
    engine.fail_all(&mut ends);
    assert!(
        matches!(ends.last(), Some(SequenceEvent::Finished { reason: FinishReason::Error, .. })),
        "{ends:?}"
    );
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_read() {
    let stand_in = StandIn::load();
    stand_in.set_memory(200 << 20);
    let file = ModelFile::open(&model_path()).unwrap();
    let error = CudaExecutor::load_file(&file, &CudaConfig { memory_percent: 40, ..config() }).unwrap_err();
    assert!(matches!(error, CudaLoadError::DoesNotFit { .. }), "{error}");
    assert!(error.to_string().contains("would fit"), "{error}");
}
