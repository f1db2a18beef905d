//! One limit on tokens a minute: a bucket, and what requests in flight hold of it. A request takes what it will likely
//! need, and more while it runs, should it outgrow that. Pure: time and limit are arguments.

use std::time::Duration;

use super::token_bucket::TokenBucket;

/// The debt that there may be of a limit: a quarter of a minute's.
const DEBT_DIVISOR: u64 = 4;
/// Half of it is for answers that outgrow their reservations. The other half is for what a worker computes of them
/// while the word is on its way that they may not.
const GROWTH_DEBT_DIVISOR: u64 = 2 * DEBT_DIVISOR;
/// When one of the running will end is not known; a second is the usual advice.
pub(super) const WAIT_FOR_AN_END: Duration = Duration::from_secs(1);

/// Level of one limit on tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    bucket: Option<TokenBucket>,
    /// Sum of what the requests in flight hold.
    held: u64,
}

/// By how much a request misses a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) limit: u64,
    pub(crate) requested: u64,
    pub(crate) available: u64,
    /// Until there may be room; `None` where time will not help.
    pub(crate) wait: Option<Duration>,
}

/// One per-minute limit as the `x-ratelimit-*` headers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitState {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: Duration,
}

impl Meter {
    /// On this bucket; nothing is in flight.
    pub(super) fn on(bucket: Option<TokenBucket>) -> Self {
        Self { bucket, ..Self::default() }
    }

    /// Applies the limit in force and what `now` has earned.
    pub(super) fn refresh(&mut self, limit: Option<u64>, used_at: Option<Duration>, now: Duration) {
        refresh(&mut self.bucket, limit, used_at, now, self.held);
    }

    /// How much a request is to hold that uses `least` in any case, and will `likely` use this much; `None` without a
    /// limit. Changes nothing.
    pub(super) fn check(&self, least: u64, likely: u64) -> Result<Option<u64>, Excess> {
        let Some(bucket) = &self.bucket else { return Ok(None) };
        // Above a minute's limit it would never fit, though what it needs in any case does.
        let tokens = likely.min(bucket.limit()).max(least);
        let wait = match bucket.wait_for(tokens) {
            Some(Duration::ZERO) => return Ok(Some(tokens)),
            // Time alone fills the bucket only as far as what is held leaves room.
            Some(wait) if self.held.saturating_add(tokens) > bucket.limit() => {
                Some(wait.max(WAIT_FOR_AN_END))
            }
            wait => wait,
        };
        Err(Excess { limit: bucket.limit(), requested: tokens, available: bucket.available(), wait })
    }

    /// Takes what [`Self::check`], or [`Self::room_to_grow`], gave, with no change in between. 0 without a limit.
    pub(super) fn take(&mut self, tokens: u64) -> u64 {
        let Some(bucket) = &mut self.bucket else { return 0 };
        bucket.take(tokens);
        self.held = self.held.saturating_add(tokens);
        tokens
    }

    /// By how much requests in flight may now outgrow what they hold.
    pub(super) fn room_to_grow(&mut self, now: Duration) -> u64 {
        let Some(bucket) = &mut self.bucket else { return u64::MAX };
        bucket.refill(now, self.held);
        bucket.available_with_debt(bucket.limit() / GROWTH_DEBT_DIVISOR)
    }

    /// Ends what was taken: `used` of it was used, or more.
    pub(super) fn settle(&mut self, held: u64, used: u64, now: Duration) {
        debug_assert!(self.held >= held, "a hold is ended once");
        if let Some(bucket) = &mut self.bucket {
            // Until now it was held.
            bucket.refill(now, self.held);
        }
        self.held = self.held.saturating_sub(held);
        if let Some(bucket) = &mut self.bucket {
            match held.checked_sub(used) {
                Some(unused) => bucket.give_back(unused, self.held),
                // Computed while it was being cut, or under no limit or a higher one than this.
                None => bucket.take_into_debt(used - held, bucket.limit() / DEBT_DIVISOR),
            }
        }
    }

    pub(super) fn state(&self) -> Option<LimitState> {
        self.bucket.as_ref().map(state)
    }

    /// Nothing is held, and the bucket, if there is one, is full.
    pub(super) fn is_idle(&mut self, now: Duration) -> bool {
        self.held == 0 && is_full(&mut self.bucket, now)
    }
}

/// A bucket as it is after `past`, uses with their times in order.
pub(super) fn restored(mut bucket: TokenBucket, past: impl Iterator<Item = (Duration, u64)>) -> TokenBucket {
    let max_debt = bucket.limit() / DEBT_DIVISOR;
    for (at, used) in past {
        bucket.refill(at, 0);
        // Under a higher limit more may have been used than this one would have admitted.
        bucket.take_into_debt(used, max_debt);
    }
    bucket
}

/// A limit that appears for who has lately been running without it starts empty at the last use, and gives no burst.
pub(super) fn refresh(
    bucket: &mut Option<TokenBucket>,
    limit: Option<u64>,
    used_at: Option<Duration>,
    now: Duration,
    held: u64,
) {
    match (bucket.as_mut(), limit) {
        (Some(bucket), Some(limit)) if bucket.limit() != limit => bucket.set_limit(limit, now, held),
        (Some(bucket), Some(_)) => bucket.refill(now, held),
        (None, Some(limit)) => {
            let begun = used_at
                .map_or_else(|| TokenBucket::full(limit, now), |used_at| TokenBucket::empty(limit, used_at));
            bucket.insert(begun).refill(now, held);
        }
        (_, None) => *bucket = None,
    }
}

pub(super) fn state(bucket: &TokenBucket) -> LimitState {
    LimitState { limit: bucket.limit(), remaining: bucket.available(), reset: bucket.time_to_full() }
}

pub(super) fn is_full(bucket: &mut Option<TokenBucket>, now: Duration) -> bool {
    bucket.as_mut().is_none_or(|bucket| {
        bucket.refill(now, 0);
        bucket.is_full()
    })
}

#[cfg(test)]
mod tests;
