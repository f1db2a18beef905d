//! `weir worker`.

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use weir_worker::{Config, Deps};

use crate::process::{Process, run_alone};
use crate::{ConfigArgs, ops};

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    run_alone(args, |file| Ok(Config::try_from(file.worker)?), serve)
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
    running.stopped().await;
    ended.cancel();
    Ok(())
}
