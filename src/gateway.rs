//! `weir gateway`. It serves its own `/metrics`, `/healthz` and `/readyz`.

use anyhow::Context;
use weir_gateway::{Config, Deps};

use crate::process::{Process, run_alone};
use crate::{ConfigArgs, ops};

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    run_alone(args, |file| Ok(Config::try_from(file.gateway)?), serve)
}

async fn serve(config: Config, _: ops::RawConfig, mut process: Process) -> anyhow::Result<()> {
    let deps = Deps { clock: Process::clock(), metrics_text: process.metrics_text() };
    let running = weir_gateway::start(config, deps, &mut process.registry, process.cancel.clone())
        .await
        .context("the gateway did not start")?;
    process.registered();
    Ok(running.stopped().await?)
}
