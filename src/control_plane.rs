//! `weir control-plane`. It serves its own `/metrics`, `/healthz` and `/readyz`.

use anyhow::Context;
use weir_server::{Config, Deps};

use crate::process::{Process, run_alone};
use crate::screen::say;
use crate::{ConfigArgs, ops};

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    run_alone(args, |file| Ok(Config::try_from(file.control_plane)?), serve)
}

async fn serve(config: Config, _: ops::RawConfig, mut process: Process) -> anyhow::Result<()> {
    let deps = Deps { clock: Process::clock(), metrics_text: process.metrics_text() };
    let mut running = weir_server::start(config, deps, &mut process.registry, process.cancel.clone())
        .await
        .context("the control plane did not start")?;
    process.registered();
    let token = running.prepared().await.context("the control plane did not start")?;
    if let Some(token) = token {
        say(&format!("The first admin token, shown this once:\n{token}"));
    }
    running.stopped().await;
    Ok(())
}
