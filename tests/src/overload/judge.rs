//! What must hold of a run under a policy.

use std::collections::BTreeMap;
use std::time::Duration;

use super::load::{ANSWER_TOKENS, Kind, Outcome};
use super::scenario::{CUT_TOKENS, MAX_DEPTH, SMALLER, TARGET};
use crate::installation::MODEL;

/// Of admitted interactive requests, so many keep the target.
const KEPT_MIN: f64 = 0.95;
/// Goodput under overload, as a share of that at capacity.
const GOODPUT_MIN: f64 = 0.9;

/// What the whole run gave.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Requests.
    pub sent: usize,
    /// Of them, answered.
    pub admitted: usize,
    /// Share of the admitted interactive ones whose first token came in time.
    pub kept: f64,
    /// Tokens a second of answers whose first token came in time (of batch: of all answers).
    pub goodput: f64,
    /// The 95th percentile of admitted interactive ones.
    pub ttft_p95: Duration,
}

/// Sums a run up; goodput is that of the time from `from` to `to`, in seconds.
pub fn sum_up(outcomes: &[Outcome], (from, to): (f64, f64)) -> Summary {
    let admitted: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.status.is_success()).collect();
    let interactive = admitted.iter().filter(|outcome| outcome.kind != Kind::Batch);
    let mut ttfts: Vec<Duration> = interactive.filter_map(|outcome| outcome.ttft).collect();
    ttfts.sort_unstable();
    let kept = ttfts.iter().filter(|ttft| **ttft <= TARGET).count();
    let is_good = |outcome: &&&Outcome| {
        let (_, ended) = outcome.span;
        let in_time = outcome.kind == Kind::Batch || outcome.ttft.is_some_and(|ttft| ttft <= TARGET);
        in_time && (from..to).contains(&ended)
    };
    let tokens: u64 = admitted.iter().filter(is_good).map(|outcome| outcome.tokens).sum();
    Summary {
        sent: outcomes.len(),
        admitted: admitted.len(),
        kept: kept as f64 / ttfts.len().max(1) as f64,
        goodput: tokens as f64 / (to - from),
        ttft_p95: ttfts.get(ttfts.len() * 95 / 100).copied().unwrap_or_default(),
    }
}

/// Everything that is wrong with a run under `policy`, in words.
pub fn wrong(policy: &str, outcomes: &[Outcome], run: &Summary, at_capacity: &Summary) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut hold = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{policy}: {what}"));
        }
    };
    hold(run.kept >= KEPT_MIN, format!("{:.1} % of the admitted kept the target", run.kept * 100.0));
    let share = run.goodput / at_capacity.goodput;
    hold(share >= GOODPUT_MIN, format!("goodput is {:.1} % of that at capacity", share * 100.0));
    let refused = outcomes.iter().filter(|outcome| !outcome.status.is_success());
    let odd: BTreeMap<String, usize> = refused
        .filter(|outcome| {
            outcome.code != "capacity_exhausted" || !outcome.says_when || outcome.queue_depth.is_none()
        })
        .fold(BTreeMap::new(), |mut odd, outcome| {
            *odd.entry(format!("{} {}", outcome.status, outcome.code)).or_default() += 1;
            odd
        });
    hold(odd.is_empty(), format!("refusals that say not why and when: {odd:?}"));
    hold(run.admitted < run.sent, "nobody was refused at five times the capacity".to_owned());
    let admitted = || outcomes.iter().filter(|outcome| outcome.status.is_success());
    let count = |of: &dyn Fn(&&Outcome) -> bool| admitted().filter(|outcome| of(outcome)).count();
    let cut = count(&|outcome| outcome.overload.as_deref() == Some("shrink"));
    let elsewhere = count(&|outcome| outcome.model != MODEL);
    match policy {
        "shrink" => {
            hold(cut * 2 > run.admitted, format!("{cut} of {} answers were cut", run.admitted));
            let longer =
                count(&|o| o.granted.is_some_and(|granted| granted != CUT_TOKENS || o.tokens > granted));
            hold(longer == 0, format!("{longer} answers are not as long as granted"));
        }
        "overflow" => {
            hold(elsewhere * 10 > run.admitted, format!("{elsewhere} answers came from the smaller model"));
            let untrue = count(&|o| (o.model != MODEL) != (o.overload.as_deref() == Some("overflow")));
            hold(untrue == 0, format!("{untrue} answers hide who gave them"));
            let forced = count(&|o| o.kind == Kind::Firm && o.model != MODEL);
            hold(forced == 0, format!("{forced} answers of another model to who did not agree"));
            let strange = count(&|o| o.model != MODEL && o.model != SMALLER);
            hold(strange == 0, format!("{strange} answers of some other model"));
        }
        _ => hold(cut + elsewhere == 0, format!("{cut} answers were cut, {elsewhere} came from elsewhere")),
    }
    if policy != "shrink" {
        let short = count(&|outcome| outcome.tokens < ANSWER_TOKENS);
        // An end of the text may be drawn, once in some thousand answers.
        hold(short * 100 <= run.admitted, format!("{short} answers are shorter than asked for"));
    }
    if policy != "shed" {
        let deep = count(&|o| o.kind != Kind::Batch && o.queue_depth.is_some_and(|depth| depth >= MAX_DEPTH));
        hold(deep == 0, format!("{deep} requests were put into a queue that was full"));
    }
    wrong
}
