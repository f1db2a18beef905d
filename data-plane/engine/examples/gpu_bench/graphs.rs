//! Decode steps recorded as graphs give what the same operations give one by one.

use std::collections::BTreeMap;
use std::error::Error;

use weir_engine::executor::cuda::CudaExecutor;
use weir_engine::model::ModelFacts;
use weir_engine::{
    Engine, EngineConfig, Executor, SamplingParams, SequenceEvent, SequenceId, SequenceRequest, TokenId,
    TokenLogprobs,
};
use weir_kernels::quant::GgmlType;

use super::Outcome;
use super::model::{config, llama_8b};
use super::streams::{TakeAll, prompt};

type Answers = BTreeMap<SequenceId, Vec<(TokenId, Option<TokenLogprobs>)>>;

/// Answers of random models with graphs and without, every token and every bit of the log-probabilities; an error if any
/// differs.
pub(crate) fn run(is_tiny: bool) -> Outcome {
    let full = llama_8b(false);
    let facts = match is_tiny {
        true => llama_8b(true),
        false => ModelFacts { num_layers: 4, hidden_dim: 1024, num_heads: 8, num_kv_heads: 2, ..full },
    };
    for weights in [GgmlType::BF16, GgmlType::Q4_0] {
        // Several sizes of graphs: sequences end one after another.
        let (streams, tokens) = if is_tiny { (3, 3) } else { (40, 40) };
        let load = || CudaExecutor::random(&facts, weights, &config(is_tiny, streams, 512, 1024));
        let launched = answers(load()?.without_graphs(), streams, tokens)?;
        let recorded = answers(load()?, streams, tokens)?;
        if recorded != launched {
            return Err(format!("{weights:?}: steps recorded as graphs give other answers").into());
        }
        let tokens: usize = recorded.values().map(Vec::len).sum();
        println!(
            "{weights:?}: {tokens} tokens of {streams} sequences are equal, with their log-probabilities"
        );
    }
    Ok(())
}

fn answers(executor: CudaExecutor, streams: u32, tokens: u32) -> Result<Answers, Box<dyn Error>> {
    let capacity = executor.capacity();
    let mut engine = Engine::new(EngineConfig::for_capacity(&capacity), executor)?;
    let mut answers = Answers::new();
    for stream in 0..streams {
        let sampling = SamplingParams { logprobs: Some(2), ..SamplingParams::GREEDY };
        let prompt = prompt(stream, 1 + 7 * stream, capacity.vocab_size);
        let request = SequenceRequest::new(prompt, tokens + stream, sampling);
        answers.insert(engine.add(request, TakeAll)?, Vec::new());
    }
    while engine.has_work() {
        let mut events = Vec::new();
        engine.step(&mut events)?;
        for event in events {
            if let SequenceEvent::Token { id, token, logprobs } = event {
                answers.entry(id).or_default().push((token, logprobs.map(|logprobs| *logprobs)));
            }
        }
    }
    Ok(answers)
}
