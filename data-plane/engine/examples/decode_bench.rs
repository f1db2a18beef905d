//! Aggregate decode of the whole engine, in the shape of llama.cpp's batched bench: for each number of streams,
//! prompts of `--npp` tokens are computed, then `--ntg` steps are timed in which every stream gets a token.
//!
//! `decode_bench --model FILE [--threads 2] [--npp 128] [--ntg 128] [--npl 1,16]`; one line of JSON for each number of
//! streams. `tests/bench/engine.sh` runs it beside llama.cpp.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "shared/streams.rs"]
mod streams;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use weir_engine::executor::cpu::{CpuConfig, CpuExecutor};
use weir_engine::{Engine, EngineConfig, Executor, SamplingParams, SequenceEvent, SequenceRequest};

use streams::{TakeAll, prompt};

struct Arguments {
    model: PathBuf,
    threads: usize,
    prompt_tokens: u32,
    timed_steps: u32,
    streams: Vec<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    for streams in &arguments.streams {
        let executor = CpuExecutor::load(&arguments.model, &config(&arguments, *streams))?;
        let isa = executor.isa_name();
        let engine_config = EngineConfig::for_capacity(&executor.capacity());
        let mut engine = Engine::new(engine_config, executor)?;
        for stream in 0..*streams {
            let prompt = prompt(stream, arguments.prompt_tokens, engine.capacity().vocab_size);
            let max_tokens = arguments.prompt_tokens + 2 * arguments.timed_steps;
            engine.add(SequenceRequest::new(prompt, max_tokens, SamplingParams::GREEDY), TakeAll)?;
        }
        let (prefill_tokens_per_s, decode_tokens_per_s) = measure(&mut engine, &arguments, *streams)?;
        println!(
            r#"{{"streams":{streams},"prompt_tokens":{},"timed_steps":{},"threads":{},"isa":"{isa}","prefill_tokens_per_s":{prefill_tokens_per_s:.2},"decode_tokens_per_s":{decode_tokens_per_s:.2}}}"#,
            arguments.prompt_tokens, arguments.timed_steps, arguments.threads,
        );
    }
    Ok(())
}

/// Steps until every stream has its first token, then times steps in which all of them decode.
fn measure(
    engine: &mut Engine<CpuExecutor, TakeAll>,
    arguments: &Arguments,
    streams: u32,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut started = std::collections::HashSet::new();
    let prefill_start = Instant::now();
    while started.len() < streams as usize {
        let mut events = Vec::new();
        engine.step(&mut events)?;
        started.extend(events.iter().map(SequenceEvent::id));
    }
    let prefill_s = prefill_start.elapsed().as_secs_f64();
    let mut events = Vec::<SequenceEvent>::new();
    let decode_start = Instant::now();
    for _ in 0..arguments.timed_steps {
        let report = engine.step(&mut events)?;
        assert_eq!(
            (report.decode_tokens, report.prefill_tokens),
            (streams, 0),
            "every timed step decodes every stream"
        );
    }
    let decode_s = decode_start.elapsed().as_secs_f64();
    let prompts = f64::from(streams) * f64::from(arguments.prompt_tokens);
    Ok((prompts / prefill_s, f64::from(streams) * f64::from(arguments.timed_steps) / decode_s))
}

fn config(arguments: &Arguments, streams: u32) -> CpuConfig {
    // Streams that started early decode beside the others' prefill, so their sequences get longer than `npp + ntg`.
    let context =
        2 * (arguments.prompt_tokens + arguments.timed_steps) + streams * arguments.prompt_tokens / 16;
    CpuConfig {
        threads: arguments.threads,
        kv_bytes: 1 << 30,
        max_seats: streams,
        max_step_tokens: 512,
        context_limit: Some(context),
        num_host_pages: 0,
    }
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut model = None;
        let mut arguments = Self {
            model: PathBuf::new(),
            threads: 2,
            prompt_tokens: 128,
            timed_steps: 128,
            streams: vec![1, 16],
        };
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--model" => model = Some(PathBuf::from(value)),
                "--threads" => arguments.threads = value.parse()?,
                "--npp" => arguments.prompt_tokens = value.parse()?,
                "--ntg" => arguments.timed_steps = value.parse()?,
                "--npl" => arguments.streams = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
                _ => return Err(format!("unknown flag {flag}").into()),
            }
        }
        arguments.model = model.ok_or("--model is missing")?;
        Ok(arguments)
    }
}
