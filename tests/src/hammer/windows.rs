//! Every stretch of time against the limits that were in force in it.

/// A limit, from a time until the next one's.
#[derive(Debug, Clone, Copy)]
pub struct InForce {
    /// Microseconds of the wall clock.
    pub since_us: i64,
    /// Tokens a minute.
    pub per_minute: i64,
}

/// Tokens that were settled at a time.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    /// Microseconds of the wall clock.
    pub at_us: i64,
    /// How many.
    pub tokens: i64,
}

/// A stretch of time from one settlement to another, both counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    /// Microseconds from the first to the last.
    pub length_us: i64,
    /// Tokens settled in it.
    pub tokens: i64,
    /// Tokens that the limits give in it.
    pub earned: f64,
}

impl Window {
    /// What was settled beyond the limits times the time; the burst and the debt must cover it.
    pub fn excess(&self) -> f64 {
        count(self.tokens) - self.earned
    }
}

/// The stretch with the greatest excess of all; every other has less. `settled` is in order of time.
pub fn worst(limits: &[InForce], settled: &[Settled]) -> Window {
    let mut worst = Window::default();
    // Of all beginnings so far, the one that leaves most: its time, tokens before it, tokens earned before it.
    let mut from: Option<(i64, i64, f64)> = None;
    let mut before = 0;
    for &Settled { at_us, tokens } in settled {
        let earned = earned(limits, at_us);
        let kept = |(_, before, earned): (i64, i64, f64)| count(before) - earned;
        let here = (at_us, before, earned);
        let best = from.filter(|&earlier| kept(earlier) <= kept(here)).unwrap_or(here);
        from = Some(best);
        before += tokens;
        let window = Window { length_us: at_us - best.0, tokens: before - best.1, earned: earned - best.2 };
        if window.excess() > worst.excess() {
            worst = window;
        }
    }
    worst
}

/// Tokens that the limits give from the first on until a time.
fn earned(limits: &[InForce], until_us: i64) -> f64 {
    let of_limit = |(at, limit): (usize, &InForce)| {
        let end_us = limits.get(at + 1).map_or(until_us, |next| next.since_us).min(until_us);
        count((end_us - limit.since_us).max(0)) / 60e6 * count(limit.per_minute)
    };
    limits.iter().enumerate().map(of_limit).sum()
}

/// Exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "microseconds and tokens of a run are far below 2^53")]
pub(super) fn count(number: i64) -> f64 {
    number as f64
}
