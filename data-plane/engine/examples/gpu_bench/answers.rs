//! Greedy answers of a model file, for comparing with other implementations.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_engine::executor::cuda::CudaExecutor;
use weir_engine::model::ModelFile;
use weir_engine::{Engine, EngineConfig, Executor, SamplingParams, SequenceEvent, SequenceRequest, TokenId};
use weir_kernels::cuda::ops::{ActivationType, KvElement};

use super::Outcome;
use super::model::config;
use super::streams::TakeAll;

/// Tokens of an answer: as many as the committed fixtures have.
const TOKENS: u32 = 64;
/// Alternatives whose log-probabilities are given.
const TOP: u32 = 5;

/// The part of `data-plane/engine/tests/fixtures/golden.json` that is read.
#[derive(Deserialize)]
struct Prompts {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    ids: Vec<TokenId>,
}

/// An answer with the natural logarithms of its tokens' probabilities, and the likeliest tokens with theirs.
#[derive(Default, Serialize)]
struct Answer {
    name: String,
    prompt: Vec<TokenId>,
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    top: Vec<Vec<(TokenId, f32)>>,
}

/// Writes the answers to all prompts, computed together, as one JSON array. `is_tiny`: one token of the shortest one.
pub(crate) fn run((model, prompts, out): (&Path, &Path, &Path), is_tiny: bool) -> Outcome {
    let file = ModelFile::open(model)?;
    let mut prompts = serde_json::from_slice::<Prompts>(&std::fs::read(prompts)?)?.prompts;
    prompts.sort_by_key(|prompt| prompt.ids.len());
    let (num_prompts, tokens) = if is_tiny { (1, 1) } else { (usize::MAX, TOKENS) };
    prompts.truncate(num_prompts);
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().ok_or("no prompts")?;
    let (seats, context_limit) = (u32::try_from(prompts.len())?, u32::try_from(longest)? + TOKENS);
    let mut config = config(is_tiny, seats, 512, context_limit);
    // The more exact of the two, so that what is left is the kernels'.
    (config.activation, config.kv) = (Some(ActivationType::F16), Some(KvElement::F16));
    let executor = CudaExecutor::load_file(&file, &config)?;
    let mut engine = Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor)?;
    let mut answers = BTreeMap::new();
    for Prompt { name, ids } in prompts {
        let sampling = SamplingParams { logprobs: Some(TOP), ..SamplingParams::GREEDY };
        let request = SequenceRequest::new(ids.clone(), tokens, sampling);
        let id = engine.add(request, TakeAll)?;
        answers.insert(id, Answer { name, prompt: ids, ..Answer::default() });
    }
    while engine.has_work() {
        let mut events = Vec::new();
        engine.step(&mut events)?;
        for event in events {
            let SequenceEvent::Token { id, token, logprobs } = event else { continue };
            let logprobs = logprobs.ok_or("a token without its log-probabilities")?;
            let answer = answers.get_mut(&id).ok_or("an answer to no prompt")?;
            answer.tokens.push(token);
            answer.logprobs.push(logprobs.chosen);
            answer.top.push(logprobs.top);
        }
    }
    std::fs::write(out, serde_json::to_string(&answers.values().collect::<Vec<_>>())?)?;
    println!("{} answers of {tokens} tokens", answers.len());
    Ok(())
}
