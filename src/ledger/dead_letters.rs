//! `weir ledger dead-letters`: records that could not be taken, and what becomes of them.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use weir_ledger::dead_letters::{self, DeadLetter, DecisionError};

use super::installation::Place;
use crate::process::{Process, block_on};
use crate::screen::{complain, say};

/// One statement at a time.
const CONNECTIONS: u32 = 1;
/// Letters read at once.
const PAGE: i64 = 200;

#[derive(Debug, Subcommand)]
pub(super) enum DeadLettersCommand {
    /// Show those that nobody has decided on.
    List(ListArgs),
    /// Read their bytes again with this release, as if they had arrived now; each at most once.
    Replay(ReplayArgs),
    /// Decide that they will never be charged.
    WriteOff(WriteOffArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    place: Place,
    /// Those that were decided on, too.
    #[arg(long)]
    all: bool,
    /// One JSON object a line, with the records' bytes.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    place: Place,
    /// Numbers, as listed.
    #[arg(required = true)]
    numbers: Vec<i64>,
    /// Who decides.
    #[arg(long)]
    by: String,
}

#[derive(Debug, Args)]
pub(super) struct WriteOffArgs {
    #[command(flatten)]
    place: Place,
    /// Numbers, as listed.
    #[arg(required = true)]
    numbers: Vec<i64>,
    /// Who decides.
    #[arg(long)]
    by: String,
    /// Why.
    #[arg(long)]
    why: String,
}

pub(super) fn run(command: DeadLettersCommand) -> anyhow::Result<ExitCode> {
    match command {
        DeadLettersCommand::List(args) => list(&args),
        DeadLettersCommand::Replay(ReplayArgs { place, numbers, by }) => {
            decide(&place, &numbers, &by, None, "replayed")
        }
        DeadLettersCommand::WriteOff(WriteOffArgs { place, numbers, by, why }) => {
            if why.trim().is_empty() {
                bail!("--why is empty");
            }
            decide(&place, &numbers, &by, Some(&why), "written off")
        }
    }
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let database = args.place.ledger()?.database()?;
    block_on(async |_| {
        let pool = weir_ledger::connect(database, CONNECTIONS);
        let mut after = 0;
        loop {
            let letters = dead_letters::list(&pool, args.all, after, PAGE)
                .await
                .context("the ledger's database cannot be read")?;
            let Some(last) = letters.last() else {
                if after == 0 && !args.json {
                    say("No dead letters.");
                }
                return Ok(ExitCode::SUCCESS);
            };
            after = last.dead_letter;
            for letter in &letters {
                say(&match args.json {
                    true => serde_json::to_string(letter)?,
                    false => describe(letter),
                });
            }
        }
    })
}

fn describe(letter: &DeadLetter) -> String {
    let DeadLetter { dead_letter, sender, sequence, topic, reason, detail, stored_at, .. } = letter;
    let decided = match (&letter.decision, &letter.decided_by) {
        (Some(decision), Some(by)) => format!("; {decision} by {by}"),
        (_, _) => String::new(),
    };
    format!("{dead_letter}  {stored_at}  {topic}  {sender}.{sequence}  {reason}: {detail}{decided}")
}

/// Decides on each; one that cannot be decided so does not hold up the others.
fn decide(
    place: &Place,
    numbers: &[i64],
    by: &str,
    why: Option<&str>,
    done: &str,
) -> anyhow::Result<ExitCode> {
    if by.trim().is_empty() {
        bail!("--by is empty");
    }
    let database = place.ledger()?.database()?;
    block_on(async |_| {
        let pool = weir_ledger::connect(database, CONNECTIONS);
        let mut outcome = ExitCode::SUCCESS;
        for &number in numbers {
            let decided = match why {
                None => dead_letters::replay(&pool, &Process::clock(), number, by).await,
                Some(why) => dead_letters::write_off(&pool, &Process::clock(), number, by, why).await,
            };
            match decided {
                Ok(()) => say(&format!("dead letter {number} was {done}")),
                Err(error @ DecisionError::Postgres(_)) => return Err(error.into()),
                Err(error) => {
                    complain(&error.to_string());
                    outcome = ExitCode::FAILURE;
                }
            }
        }
        Ok(outcome)
    })
}
