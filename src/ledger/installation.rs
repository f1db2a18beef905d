//! Which ledger is asked: the one of a configuration file, or of the installation that `weir up` made in this folder.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use weir_ledger::RawConfig;

use crate::config;
use crate::up::{Postgres, StateDir};

/// Where the ledger's tables are.
#[derive(Debug, Clone, Args)]
pub(super) struct Place {
    /// A configuration file with the section [ledger]; without it, the installation of `weir up` in this folder.
    #[arg(long)]
    config: Option<PathBuf>,
}

impl Place {
    /// The section that says where the database is.
    pub(super) fn ledger(&self) -> anyhow::Result<RawConfig> {
        match &self.config {
            Some(path) => Ok(config::load(path, false)?.raw.ledger),
            None => here(),
        }
    }
}

fn here() -> anyhow::Result<RawConfig> {
    let state = StateDir::here()?;
    if !state.exists() {
        bail!("nothing was installed in this folder with `weir up`; name the ledger's file with --config");
    }
    let postgres = Postgres::left_over(&state)?
        .context("the Postgres of this folder does not run; start it with `weir up`")?;
    Ok(RawConfig { database_url: postgres.url(), ..RawConfig::default() })
}
