//! `weir ledger verify`: the ledger against itself, for people and for scripts.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use chrono::{DateTime, Utc};
use clap::Args;
use serde::Serialize;
use weir_ledger::{Difference, Findings, Range, SETTLING, SequenceGap, VerifyReport};

use super::installation::Place;
use crate::process::{Process, block_on};
use crate::screen::say;

/// One comparison at a time.
const CONNECTIONS: u32 = 1;
/// Findings of each kind that are shown to a person; the rest is counted.
const SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    place: Place,
    /// Requests received at or after this time (RFC 3339) [default: all]
    #[arg(long, value_parser = time)]
    from: Option<DateTime<Utc>>,
    /// Requests over before this time (RFC 3339) [default: a minute ago, so that no record is still on its way]
    #[arg(long, value_parser = time)]
    to: Option<DateTime<Utc>>,
    /// Everything that was found, as JSON.
    #[arg(long)]
    json: bool,
}

fn time(text: &str) -> Result<DateTime<Utc>, chrono::ParseError> {
    DateTime::parse_from_rfc3339(text).map(|time| time.to_utc())
}

pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let range = Range {
        from: args.from.unwrap_or(DateTime::UNIX_EPOCH),
        to: args.to.unwrap_or_else(|| Process::clock().now() - SETTLING),
    };
    if range.from >= range.to {
        bail!("--from is not before --to");
    }
    let database = args.place.ledger()?.database()?;
    let report = block_on(async |_| {
        let pool = weir_ledger::connect(database, CONNECTIONS);
        weir_ledger::verify(&pool, range).await.context("the ledger's database cannot be read")
    })?;
    say(&match args.json {
        true => serde_json::to_string_pretty(&Answer { clean: report.is_clean(), range, report: &report })?,
        false => describe(&report, range),
    });
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Serialize)]
struct Answer<'a> {
    clean: bool,
    range: Range,
    #[serde(flatten)]
    report: &'a VerifyReport,
}

fn describe(report: &VerifyReport, range: Range) -> String {
    let VerifyReport { counts, gaps, duplicates, differences, recovered, dead_letters } = report;
    let mut text = format!(
        "The ledger is {}: {} gaps, {} duplicates, {} differences, {} dead letters to decide on.\n\
         Requests received from {} and over before {}: {} charged ({} from executions alone, {} corrections), \
         {} executions, {} waiting for a price.\n\
         After crashes {} charges and {} executions were closed from their last progress; {} differ, within what that \
         may cost.\n",
        if report.is_clean() { "clean" } else { "NOT clean" },
        gaps.total,
        duplicates.total,
        differences.total,
        dead_letters.total,
        range.from,
        range.to,
        counts.charges,
        counts.from_executions,
        counts.corrections,
        counts.executions,
        counts.unpriced,
        counts.recovered_charges,
        counts.recovered_executions,
        recovered.total,
    );
    let gap = |gap: &SequenceGap| format!("{} lacks {} to {}", gap.sender, gap.first, gap.last);
    list(&mut text, "Gaps", gaps, gap);
    list(&mut text, "Duplicates", duplicates, difference);
    list(&mut text, "Differences", differences, difference);
    list(&mut text, "Dead letters (weir ledger dead-letters --help)", dead_letters, difference);
    list(&mut text, "Recovered, and different within what a crash may cost", recovered, difference);
    text.truncate(text.trim_end().len());
    text
}

fn difference(found: &Difference) -> String {
    let Difference { subject, what, left, right } = found;
    format!("{subject}: {what}: [{left}] against [{right}]")
}

fn list<T>(text: &mut String, title: &str, findings: &Findings<T>, line: impl Fn(&T) -> String) {
    if findings.is_empty() {
        return;
    }
    let shown = findings.listed.iter().take(SHOWN);
    let more = usize::try_from(findings.total).unwrap_or(usize::MAX).saturating_sub(shown.len());
    let lines: String = shown.map(|found| format!("  {}\n", line(found))).collect();
    // Writing to a string cannot fail.
    let written = write!(text, "{title} ({}):\n{lines}", findings.total)
        .and_then(|()| if more > 0 { writeln!(text, "  and {more} more (--json)") } else { Ok(()) });
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_totals_the_first_findings_and_how_many_more_there_are() {
        let range = Range { from: DateTime::UNIX_EPOCH, to: DateTime::UNIX_EPOCH + SETTLING };
        let clean = describe(&VerifyReport::default(), range);
        assert!(clean.starts_with("The ledger is clean: 0 gaps, 0 duplicates, 0 differences"), "{clean}");
        assert_eq!(clean.lines().count(), 3, "{clean}");
        let found = |number: usize| Difference {
            subject: format!("req_{number}"),
            what: "executed but not charged".into(),
            left: "0 0 0".into(),
            right: "40 32 4".into(),
        };
        let report = VerifyReport {
            differences: Findings { total: 2_000, listed: (0..1_000).map(found).collect() },
            ..VerifyReport::default()
        };
        let unclean = describe(&report, range);
        assert!(
            unclean.starts_with("The ledger is NOT clean: 0 gaps, 0 duplicates, 2000 differences"),
            "{unclean}"
        );
        assert!(
            unclean.contains("  req_19: executed but not charged: [0 0 0] against [40 32 4]\n"),
            "{unclean}"
        );
        assert!(!unclean.contains("req_20:"), "{unclean}");
        assert!(unclean.ends_with("  and 1980 more (--json)"), "{unclean}");
    }
}
