//! Tokens a second of a whole engine on a model of random weights.

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use weir_engine::executor::cuda::{CudaConfig, CudaExecutor, random_weight_bytes};
use weir_engine::model::ModelFacts;
use weir_engine::{
    Engine, EngineConfig, Executor, SamplingParams, SequenceEvent, SequenceId, SequenceRequest,
};
use weir_kernels::cuda::ops::Weight;
use weir_kernels::cuda::{Device, Peaks};
use weir_kernels::quant::GgmlType;

use super::model::{config, llama_8b};
use super::report::{Measurement, Work};
use super::streams::{TakeAll, prompt};
use super::{Outcome, peaks};

/// Bytes of a key's or value's component.
const KV_BYTES: usize = 2;

/// How much is run.
struct Extent {
    streams: &'static [u32],
    prompt_tokens: u32,
    timed_steps: u32,
    step_tokens: u32,
}

const FULL: Extent =
    Extent { streams: &[1, 16, 64, 256], prompt_tokens: 512, timed_steps: 100, step_tokens: 8192 };
const TINY: Extent = Extent { streams: &[1, 3], prompt_tokens: 20, timed_steps: 3, step_tokens: 128 };

pub(crate) fn run(weights: GgmlType, is_tiny: bool) -> Outcome {
    let (extent, facts) = (if is_tiny { &TINY } else { &FULL }, llama_8b(is_tiny));
    let peaks = peaks(&Device::open(0)?)?;
    let max_seats = extent.streams.iter().copied().max().unwrap_or(1);
    let context_limit = extent.prompt_tokens + 8 * extent.timed_steps;
    let config = config(is_tiny, max_seats, extent.step_tokens, context_limit);
    // Large steps are prompts here, and are what the library is for.
    let config = CudaConfig { reproducible: false, ..config };
    let executor = CudaExecutor::random(&facts, weights, &config)?;
    // Nobody waits for a token while prompts are computed: they take the whole step.
    let engine_config = EngineConfig {
        prefill_tokens_beside_decode_max: extent.step_tokens - max_seats,
        ..EngineConfig::for_capacity(&executor.capacity())
    };
    let mut engine = Engine::new(engine_config, executor)?;
    let costs = Costs::of(&facts, weights)?;
    for &streams in extent.streams {
        let what = format!("{weights:?} model, {streams} streams");
        measure(&mut engine, extent, streams, &what, &costs, &peaks)?;
    }
    Ok(())
}

/// What a step reads and computes.
struct Costs {
    /// Bytes of the matrices that every step reads: all but the embedding table.
    weight_bytes: f64,
    /// Elements of the layers' matrices, and of the output head.
    layer_elements: f64,
    output_elements: f64,
    /// Bytes of a position's keys and values.
    position_bytes: f64,
    /// Operations of a token for each position that it sees.
    position_flops: f64,
}

impl Costs {
    fn of(facts: &ModelFacts, weights: GgmlType) -> Result<Self, &'static str> {
        let table = (facts.vocab_size as usize, facts.hidden_dim);
        let table_bytes = Weight::device_bytes(weights, table).ok_or("a table that overflows")?;
        let (query, kv) = (facts.query_dim(), facts.kv_dim());
        let layer = facts.hidden_dim * (2 * query + 2 * kv + 3 * facts.feed_forward_dim);
        Ok(Self {
            weight_bytes: (random_weight_bytes(facts, weights) - table_bytes as u64) as f64,
            layer_elements: (facts.num_layers * layer) as f64,
            output_elements: (table.0 * table.1) as f64,
            position_bytes: (facts.num_layers * 2 * kv * KV_BYTES) as f64,
            position_flops: (facts.num_layers * 4 * query) as f64,
        })
    }

    /// A step in which each of `streams` gets a token and sees `context` positions.
    fn decode(&self, streams: f64, context: f64) -> Work {
        let products = 2.0 * (self.layer_elements + self.output_elements);
        Work {
            bytes: self.weight_bytes + streams * context * self.position_bytes,
            flops: streams * (products + context * self.position_flops),
        }
    }

    /// Prompts of `tokens` in steps of at most `step_tokens`, and a token for each.
    fn prefill(&self, prompts: f64, tokens: f64, step_tokens: f64) -> Work {
        let steps = (prompts * tokens / step_tokens).ceil();
        let attended = prompts * tokens * tokens / 2.0;
        Work {
            bytes: steps * self.weight_bytes + prompts * tokens * self.position_bytes,
            flops: 2.0 * (prompts * tokens * self.layer_elements + prompts * self.output_elements)
                + attended * self.position_flops,
        }
    }
}

fn measure(
    engine: &mut Engine<CudaExecutor, TakeAll>,
    extent: &Extent,
    streams: u32,
    what: &str,
    costs: &Costs,
    peaks: &Peaks,
) -> Result<(), Box<dyn Error>> {
    let &Extent { prompt_tokens, timed_steps, step_tokens, .. } = extent;
    let vocab_size = engine.capacity().vocab_size;
    let mut lengths: HashMap<SequenceId, u32> = HashMap::new();
    let started = Instant::now();
    for stream in 0..streams {
        let prompt = prompt(1 + stream + 1000 * streams, prompt_tokens, vocab_size);
        let request = SequenceRequest::new(prompt, 8 * timed_steps, SamplingParams::GREEDY);
        lengths.insert(engine.add(request, TakeAll)?, 0);
    }
    while lengths.values().any(|length| *length == 0) {
        step(engine, &mut lengths)?;
    }
    let prompts = f64::from(streams);
    let tokens = prompts * f64::from(prompt_tokens);
    Measurement {
        what: format!("prefill, {what}, prompts of {prompt_tokens}"),
        amount: tokens,
        unit: "tokens/s",
        seconds: started.elapsed().as_secs_f64(),
        work: costs.prefill(prompts, prompt_tokens.into(), step_tokens.into()),
        peaks,
    }
    .print();
    let before: u32 = lengths.values().sum();
    let started = Instant::now();
    for _ in 0..timed_steps {
        step(engine, &mut lengths)?;
    }
    let seconds = started.elapsed().as_secs_f64() / f64::from(timed_steps);
    let after: u32 = lengths.values().sum();
    if after - before != streams * timed_steps {
        return Err(format!("{what}: {} tokens in {timed_steps} steps", after - before).into());
    }
    let context = f64::from(prompt_tokens) + f64::from(before + after) / 2.0 / prompts;
    let work = costs.decode(prompts, context);
    let decode = format!("decode, {what}, {context:.0} positions each");
    Measurement { what: decode.clone(), amount: prompts, unit: "tokens/s", seconds, work, peaks }.print();
    Measurement { what: decode, amount: work.bytes / 1e9, unit: "GB/s", seconds, work, peaks }.print();
    let mut ends = Vec::<SequenceEvent>::new();
    lengths.keys().for_each(|id| engine.cancel(*id, &mut ends));
    while engine.has_work() {
        engine.step(&mut ends)?;
    }
    Ok(())
}

fn step(
    engine: &mut Engine<CudaExecutor, TakeAll>,
    lengths: &mut HashMap<SequenceId, u32>,
) -> Result<(), Box<dyn Error>> {
    let mut events = Vec::new();
    engine.step(&mut events)?;
    for event in events {
        match event {
            SequenceEvent::Token { id, .. } => *lengths.entry(id).or_default() += 1,
            SequenceEvent::Finished { reason, .. } => {
                return Err(format!("a stream ended: {reason:?}").into());
            }
        }
    }
    Ok(())
}
