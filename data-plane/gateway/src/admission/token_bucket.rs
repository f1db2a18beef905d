//! A token bucket in exact integers, with time passed in. Capacity is one minute's limit, which is also the largest
//! burst. It may go into debt (a settlement above its reservation) and then refills before it admits again.
//!
//! What is held by requests in flight counts against the capacity: level and held together never exceed it. So what is
//! settled in any stretch of time is at most what the stretch earned, one capacity and the debt at its end, however
//! long the requests ran that are settled in it, and however much of their reservations comes back.

use std::time::Duration;

/// Levels are kept in units × microseconds of a minute, so that refilling by `limit` each microsecond is exact.
const SCALE: i128 = 60_000_000;

/// Level of one per-minute limit. Limits up to 2^64 - 1 are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    limit: u64,
    level_scaled: i128,
    refilled_at: Duration,
}

impl TokenBucket {
    /// A full bucket: for who was never limited here before.
    pub(crate) fn full(limit: u64, now: Duration) -> Self {
        Self { limit, level_scaled: i128::from(limit) * SCALE, refilled_at: now }
    }

    /// An empty bucket: for who was already running without this limit, so that setting one gives no burst.
    pub(crate) fn empty(limit: u64, now: Duration) -> Self {
        Self { limit, level_scaled: 0, refilled_at: now }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds what `now` has earned while `held` was in flight. Time that runs backwards earns nothing.
    pub(crate) fn refill(&mut self, now: Duration, held: u64) {
        let elapsed_us = now.saturating_sub(self.refilled_at).as_micros();
        if elapsed_us == 0 {
            return;
        }
        // Whole microseconds only; the rest is earned next time.
        self.refilled_at += Duration::from_micros(u64::try_from(elapsed_us).unwrap_or(u64::MAX));
        let earned = i128::from(self.limit).saturating_mul(i128::try_from(elapsed_us).unwrap_or(i128::MAX));
        self.rise(earned, held);
    }

    /// Changes the limit from `now` on. What was earned under the old limit stays, up to the new capacity: a raise
    /// gives no burst, a cut applies at once.
    pub(crate) fn set_limit(&mut self, limit: u64, now: Duration, held: u64) {
        self.refill(now, held);
        self.limit = limit;
        self.level_scaled = self.level_scaled.min(self.ceiling_scaled(held).max(0));
    }

    /// Whole units that can be taken now; 0 in debt.
    pub(crate) fn available(&self) -> u64 {
        u64::try_from((self.level_scaled / SCALE).max(0)).unwrap_or(u64::MAX)
    }

    /// Whole units that can be taken now if it may end in a debt of `max_debt`.
    pub(crate) fn available_with_debt(&self, max_debt: u64) -> u64 {
        let room = self.level_scaled.saturating_add(i128::from(max_debt) * SCALE) / SCALE;
        u64::try_from(room.max(0)).unwrap_or(u64::MAX)
    }

    /// Time until `amount` can be taken, if what is held leaves room for it by then; `None` if it never can be.
    pub(crate) fn wait_for(&self, amount: u64) -> Option<Duration> {
        let missing = i128::from(amount) * SCALE - self.level_scaled;
        if missing <= 0 {
            return Some(Duration::ZERO);
        }
        if amount > self.limit || self.limit == 0 {
            return None;
        }
        let wait_us = missing.unsigned_abs().div_ceil(u128::from(self.limit));
        Some(Duration::from_micros(u64::try_from(wait_us).unwrap_or(u64::MAX)))
    }

    /// Time until the bucket is full.
    pub(crate) fn time_to_full(&self) -> Duration {
        self.wait_for(self.limit).unwrap_or(Duration::MAX)
    }

    /// Takes without asking; the caller has checked [`Self::wait_for`].
    pub(crate) fn take(&mut self, amount: u64) {
        self.level_scaled = self.level_scaled.saturating_sub(i128::from(amount) * SCALE);
    }

    /// Takes, down to a debt of `max_debt`; what would be owed beyond it is let go.
    pub(crate) fn take_into_debt(&mut self, amount: u64, max_debt: u64) {
        let lowest = self.level_scaled.min(-i128::from(max_debt) * SCALE);
        self.take(amount);
        self.level_scaled = self.level_scaled.max(lowest);
    }

    /// Gives back what was taken and not used; `held` is what is still in flight.
    pub(crate) fn give_back(&mut self, amount: u64, held: u64) {
        self.rise(i128::from(amount) * SCALE, held);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.level_scaled >= self.ceiling_scaled(0)
    }

    /// Up to the ceiling, and never down to it: a limit that was cut leaves no debt for what was held before.
    fn rise(&mut self, by_scaled: i128, held: u64) {
        let level = self.level_scaled.saturating_add(by_scaled).min(self.ceiling_scaled(held));
        self.level_scaled = self.level_scaled.max(level);
    }

    /// Highest level to rise to while `held` is in flight. Below zero where more is held than a minute's limit.
    fn ceiling_scaled(&self, held: u64) -> i128 {
        (i128::from(self.limit) - i128::from(held)) * SCALE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_raise_gives_no_burst_and_a_cut_applies_at_once() {
        let mut bucket = TokenBucket::full(60, Duration::ZERO);
        bucket.take(60);
        bucket.set_limit(6_000, Duration::ZERO, 0);
        assert_eq!((bucket.available(), bucket.wait_for(100)), (0, Some(Duration::from_secs(1))));
        bucket.refill(Duration::from_secs(1), 0);
        assert_eq!(bucket.available(), 100);
        bucket.set_limit(10, Duration::from_secs(1), 0);
        assert_eq!((bucket.available(), bucket.wait_for(11)), (10, None));
    }

    #[test]
    fn debt_is_paid_before_anything_is_admitted() {
        let mut bucket = TokenBucket::full(60, Duration::ZERO);
        bucket.take(90);
        assert_eq!((bucket.available(), bucket.wait_for(1)), (0, Some(Duration::from_secs(31))));
        bucket.refill(Duration::from_secs(31), 0);
        assert_eq!(bucket.available(), 1);
    }

    #[test]
    fn what_is_held_counts_against_the_capacity() {
        let mut bucket = TokenBucket::full(60, Duration::ZERO);
        bucket.take(40);
        bucket.refill(Duration::from_secs(600), 40);
        assert_eq!(bucket.available(), 20);
        // Ten of the forty were used; only fifty can have been saved up.
        bucket.give_back(30, 0);
        assert_eq!(bucket.available(), 50);
        // Cut below what is held, it earns nothing until that is settled, and owes nothing for it.
        bucket.take(50);
        bucket.set_limit(30, Duration::from_secs(600), 50);
        bucket.refill(Duration::from_secs(700), 50);
        assert_eq!(bucket.available(), 0);
        bucket.give_back(50, 0);
        assert_eq!(bucket.available(), 30);
    }

    #[test]
    fn zero_and_huge_limits_are_safe() {
        let mut none = TokenBucket::full(0, Duration::ZERO);
        none.refill(Duration::from_secs(600), 0);
        assert_eq!((none.available(), none.wait_for(1)), (0, None));
        let mut huge = TokenBucket::full(u64::MAX, Duration::ZERO);
        huge.take(u64::MAX);
        huge.refill(Duration::MAX, 0);
        assert_eq!(huge.available(), u64::MAX);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Wait(u32),
        Ask(u64),
        Limit(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..90_000_000).prop_map(Step::Wait),
            (0u64..200).prop_map(Step::Ask),
            (1u64..300).prop_map(Step::Limit),
        ]
    }

    proptest! {
        /// The naive model: every grant with its time. In no window do the grants exceed what the limits in force
        /// earned within it plus the largest burst seen at its start.
        #[test]
        fn no_window_gets_more_than_rate_and_burst(first in 1u64..300, steps in prop::collection::vec(step(), 1..60)) {
            let mut now = Duration::ZERO;
            let mut bucket = TokenBucket::full(first, now);
            let mut limits = vec![(now, first)];
            let mut grants: Vec<(Duration, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Wait(us) => now += Duration::from_micros(u64::from(us)),
                    Step::Limit(limit) => {
                        bucket.set_limit(limit, now, 0);
                        limits.push((now, limit));
                    }
                    Step::Ask(amount) => {
                        bucket.refill(now, 0);
                        if bucket.wait_for(amount) == Some(Duration::ZERO) {
                            bucket.take(amount);
                            grants.push((now, amount));
                        } else if let Some(wait) = bucket.wait_for(amount) {
                            let mut later = bucket;
                            later.refill(now + wait, 0);
                            prop_assert_eq!(later.wait_for(amount), Some(Duration::ZERO));
                        }
                    }
                }
                prop_assert!(bucket.available() <= bucket.limit());
            }
            for from in 0..grants.len() {
                for to in from..grants.len() {
                    let (start, end) = (grants[from].0, grants[to].0);
                    let granted: u64 = grants[from..=to].iter().map(|grant| grant.1).sum();
                    let earned: f64 = limits.iter().enumerate().map(|(at, &(since, limit))| {
                        let until = limits.get(at + 1).map_or(end, |next| next.0).min(end);
                        until.saturating_sub(since.max(start)).as_secs_f64() / 60.0 * limit as f64
                    }).sum();
                    let burst = limits.iter().filter(|(since, _)| *since <= start).map(|l| l.1).max().unwrap_or(0);
                    prop_assert!(granted as f64 <= earned + burst as f64 + 1e-6, "{granted} > {earned} + {burst}");
                }
            }
        }
    }
}
