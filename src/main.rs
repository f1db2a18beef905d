//! The one binary: each process of Weir is a subcommand, and `weir up` runs all of them in one.
//!
//! Here, and nowhere else, wall clocks are made and the environment is read. Start reading at the subcommand that
//! interests you; each has its own file.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod config;
mod control_plane;
mod down;
mod gateway;
mod inspect;
mod ledger;
mod logging;
mod openapi;
mod ops;
mod process;
mod screen;
mod up;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Requests and tokens are made in one thread and freed in another, for which the system's allocator takes locks: they cost
/// a step loop of 256 sequences a fifth of its time (`make bench-step-loop`).
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves large language models to many tenants, within their limits, and accounts for every token.
#[derive(Debug, Parser)]
#[command(name = "weir")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything on this machine, with a private Postgres and a first tenant.
    Up(up::UpArgs),
    /// Stop what `weir up --detach` started, and wait for it.
    Down(down::DownArgs),
    /// Run the control plane alone.
    ControlPlane(ConfigArgs),
    /// Run a gateway alone.
    Gateway(ConfigArgs),
    /// Run a worker alone.
    Worker(worker::WorkerArgs),
    /// Run the ledger alone, verify it, or decide on records that it could not take.
    Ledger(ledger::LedgerArgs),
    /// Print what the admin API needs to pin a model file as a version, as JSON.
    Inspect(inspect::InspectArgs),
    /// Print the control plane's OpenAPI document.
    Openapi,
}

/// A process alone takes everything from its configuration file.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// The configuration file (TOML).
    #[arg(long)]
    config: PathBuf,
    /// Only say whether the file is right; unknown keys are errors then.
    #[arg(long)]
    check_config: bool,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Down(args) => down::run(&args),
        Command::ControlPlane(args) => control_plane::run(&args),
        Command::Gateway(args) => gateway::run(&args),
        Command::Worker(args) => worker::run(&args),
        // It answers questions too, and an answer is no success or failure of the program.
        Command::Ledger(args) => match ledger::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Inspect(args) => inspect::run(&args),
        Command::Openapi => openapi::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen::complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
