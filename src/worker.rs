//! `weir worker`.

use anyhow::Context;
use clap::Args;
use tokio_util::sync::CancellationToken;
use weir_worker::{Config, Deps, Device};

use crate::config::RawFile;
use crate::process::{Process, run_alone};
use crate::{ConfigArgs, ops};

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// What models run on, whatever the file says: auto, cpu, cuda, or sim (answers are noise).
    #[arg(long)]
    device: Option<Device>,
}

pub(crate) fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let check = |mut file: RawFile| {
        file.worker.device = args.device.unwrap_or(file.worker.device);
        Ok(Config::try_from(file.worker)?)
    };
    run_alone(&args.config, check, serve)
}

async fn serve(config: Config, ops: ops::RawConfig, mut process: Process) -> anyhow::Result<()> {
    let deps = Deps { clock: Process::clock() };
    let running = weir_worker::start(config, deps, &mut process.registry, process.cancel.clone())
        .await
        .context("the worker did not start")?;
    process.registered();
    let ready = process.ready_until_stopped(running.ready_probe());
    // Answers until the last, so that a stop shows.
    let ended = CancellationToken::new();
    ops::start(&ops, process.metrics_text(), ready, &process.tasks, ended.clone()).await?;
    let outcome = running.stopped().await;
    ended.cancel();
    Ok(outcome?)
}
