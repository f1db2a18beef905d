//! Checks and measures the CUDA backend on a real device: what `tests/gpu/run.sh` runs on a machine with a GPU.
//!
//! ```text
//! gpu_bench probe                            the device and its bounds
//! gpu_bench graphs                           recorded steps give what launched ones give
//! gpu_bench answers --model FILE --prompts FILE --out FILE
//!                                            greedy answers as JSON, for tests/gpu/compare.py
//! gpu_bench attention                        bandwidth of decode attention
//! gpu_bench products                         rates of matrix products
//! gpu_bench tokens --weights bf16|q8_0|q4_0  tokens a second of an 8B-shaped model of random weights
//! ```
//!
//! Measurements are lines of JSON (`report.rs`), each with the bound that bytes, operations and the device's peaks give.
//! `--tiny`, after any of them, shrinks every shape until a driver on the CPU runs it: its times mean nothing, and are there to test this program.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is its purpose")]

mod answers;
mod arguments;
mod attention;
mod graphs;
mod model;
mod products;
mod report;
#[path = "../shared/streams.rs"]
mod streams;
mod timing;
mod tokens;

use std::error::Error;
use std::process::ExitCode;

use weir_kernels::cuda::{Device, Peaks};

use arguments::{Arguments, Command};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    eprintln!("{message}");
    ExitCode::FAILURE
}

fn run() -> Outcome {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    match &arguments.command {
        Command::Probe => probe(),
        Command::Graphs => graphs::run(arguments.is_tiny),
        Command::Answers { model, prompts, out } => answers::run((model, prompts, out), arguments.is_tiny),
        Command::Attention => attention::run(arguments.is_tiny),
        Command::Products => products::run(arguments.is_tiny),
        Command::Tokens { weights } => tokens::run(*weights, arguments.is_tiny),
    }
}

fn probe() -> Outcome {
    let device = Device::open(0)?;
    let (info, peaks) = (device.info().clone(), peaks(&device)?);
    let (major, minor) = info.compute_capability;
    println!(
        "{}, compute capability {major}.{minor}, {:.1} GB, driver for CUDA {}.{}; bounds by {}: {:.0} GB/s, {:.0} TFLOP/s",
        info.name,
        info.memory_bytes as f64 / 1e9,
        info.driver_version / 1000,
        info.driver_version % 1000 / 10,
        peaks.source,
        peaks.bandwidth / 1e9,
        peaks.tensor_flops / 1e12,
    );
    Ok(())
}

fn peaks(device: &Device) -> Result<Peaks, Box<dyn Error>> {
    Ok(device
        .peaks()?
        .ok_or("neither the driver nor a data sheet that is known here says what this device can do")?)
}
