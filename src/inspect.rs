//! `weir inspect FILE`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The model file (GGUF).
    file: PathBuf,
}

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let inspection = weir_worker::inspect(&args.file)?;
    let json = serde_json::to_string_pretty(&inspection).context("the facts have no JSON form")?;
    crate::screen::say(&json);
    Ok(())
}
