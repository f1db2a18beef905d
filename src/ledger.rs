//! `weir ledger`: the process, and what operators ask of its tables.

mod dead_letters;
mod installation;
mod verify;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use tokio_util::sync::CancellationToken;
use weir_ledger::{Config, Deps};

use crate::process::{Process, run_alone};
use crate::{ConfigArgs, ops, screen};

/// The question could not be answered: the database is away, or there is none to be found.
const CANNOT_TELL: u8 = 2;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LedgerArgs {
    #[command(flatten)]
    process: Option<ConfigArgs>,
    #[command(subcommand)]
    command: Option<LedgerCommand>,
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// Compare charges, executions, sequences and roll-ups; exit 0 only if nothing is missing, double or different.
    Verify(verify::VerifyArgs),
    /// List records that could not be taken, and decide on them.
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
}

pub(crate) fn run(args: LedgerArgs) -> anyhow::Result<ExitCode> {
    let outcome = match (args.command, args.process) {
        (Some(LedgerCommand::Verify(args)), _) => verify::run(&args),
        (Some(LedgerCommand::DeadLetters(command)), _) => dead_letters::run(command),
        (None, process) => {
            let process = process.context("--config is missing: weir ledger --config FILE")?;
            run_alone(&process, |file| Ok(Config::try_from(file.ledger)?), serve)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    outcome.or_else(|error| {
        screen::complain(&format!("cannot tell: {error:#}"));
        Ok(ExitCode::from(CANNOT_TELL))
    })
}

async fn serve(config: Config, ops: ops::RawConfig, mut process: Process) -> anyhow::Result<()> {
    let deps = Deps { clock: Process::clock() };
    let running = weir_ledger::start(config, deps, &mut process.registry, process.cancel.clone())
        .await
        .context("the ledger did not start")?;
    process.registered();
    let ready = process.ready_until_stopped(running.ready_probe());
    // Answers until the last, so that a stop shows.
    let ended = CancellationToken::new();
    ops::start(&ops, process.metrics_text(), ready, &process.tasks, ended.clone()).await?;
    running.stopped().await;
    ended.cancel();
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::Cli;

    #[test]
    fn the_process_and_what_is_asked_of_it_do_not_mix() {
        let check = |line: &str, is_right: bool| {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert_eq!(parsed.is_ok(), is_right, "{line}: {parsed:?}");
        };
        check("weir ledger --config ledger.toml", true);
        check("weir ledger --config ledger.toml --check-config", true);
        check("weir ledger", false);
        check("weir ledger verify", true);
        check("weir ledger --config ledger.toml verify", false);
        check("weir ledger verify --config ledger.toml --json", true);
        check("weir ledger verify --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00+01:00", true);
        check("weir ledger verify --from yesterday", false);
        check("weir ledger dead-letters list --all", true);
        check("weir ledger dead-letters replay 1 2 --by anna", true);
        check("weir ledger dead-letters replay 1", false);
        check("weir ledger dead-letters write-off 1 --by anna", false);
        check("weir ledger dead-letters write-off 1 --by anna --why lost", true);
    }
}
