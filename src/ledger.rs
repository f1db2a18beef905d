//! `weir ledger`.

use anyhow::Context;
use weir_ledger::{Config, Deps};

use crate::process::{Process, run_alone};
use crate::{ConfigArgs, ops};

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    run_alone(args, |file| Ok(Config::try_from(file.ledger)?), serve)
}

async fn serve(config: Config, ops: ops::RawConfig, mut process: Process) -> anyhow::Result<()> {
    let deps = Deps { clock: Process::clock() };
    let running = weir_ledger::start(config, deps, &mut process.registry, process.cancel.clone())
        .await
        .context("the ledger did not start")?;
    process.registered();
    let ready = running.ready_probe();
    ops::start(&ops, process.metrics_text(), ready, &process.tasks, process.cancel.clone()).await?;
    running.stopped().await;
    Ok(())
}
