//! `make bench-gateway`: what a request and a streamed token cost Weir's gateway, beside a bare axum handler that writes
//! the same bytes, SGLang's router and LiteLLM, all before one backend on one token schedule, in one run. Prints tables, and
//! fails if a target is missed.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "a benchmark prints, and fails by panicking"
)]

mod backend;
mod bare;
mod contender;
mod load;
mod measure;
mod process;
mod prompt;
mod report;
mod schedule;

use std::process::ExitCode;
use std::sync::Arc;

use process::Child;
use tokio::runtime::Builder;

/// The one that Weir's binary has: the floor must not be slower for want of it.
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // An engine gives its gateways one core: what else it takes would be taken from them.
    let mut runtime = match arguments[..] {
        ["backend", ..] => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    runtime.enable_all().build().unwrap().block_on(play(&arguments))
}

async fn play(arguments: &[&str]) -> ExitCode {
    match arguments[..] {
        [] => run(true).await,
        // Leaves out the others, for work on the gateway.
        ["weir"] => run(false).await,
        ["backend", secret_file, config_url] => {
            backend::serve(secret_file.into(), config_url.to_owned()).await;
            ExitCode::SUCCESS
        }
        ["bare"] => {
            bare::serve().await;
            ExitCode::SUCCESS
        }
        _ => panic!("gateway-bench [weir]"),
    }
}

async fn run(with_peers: bool) -> ExitCode {
    // So that what was started is ended.
    tokio::select! {
        code = measure_all(with_peers) => code,
        _ = tokio::signal::ctrl_c() => ExitCode::FAILURE,
    }
}

async fn measure_all(with_peers: bool) -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let prompts = Arc::new(prompt::Prompts::new());
    let ours = contender::Ours::start().await;
    let mut peers = Vec::new();
    if with_peers {
        peers.push(contender::Contender::sglang_router(ours.backend.address, folder.path()).await);
        peers.push(contender::Contender::litellm(ours.backend.address, folder.path()).await);
    }
    let results = measure::all(&ours, &peers, &prompts).await;
    ours.cluster.check_running();
    report::print(&results)
}
