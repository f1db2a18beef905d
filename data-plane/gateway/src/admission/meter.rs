//! One limit on tokens a minute: a bucket, what requests in flight hold of it, and by how much they may outgrow that.
//! Pure: time and limit are arguments.

use std::time::Duration;

use super::token_bucket::TokenBucket;

/// Tokens by which the answers in flight may, together, outgrow their reservations: a quarter of a minute's limit.
/// What they may need beyond it is reserved up front, so the debt of a bucket never exceeds this.
const DEBT_DIVISOR: u64 = 4;
/// When one of the running will end is not known; a second is the usual advice.
pub(super) const WAIT_FOR_AN_END: Duration = Duration::from_secs(1);

/// Level of one limit on tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    bucket: Option<TokenBucket>,
    /// Sum of what the requests in flight have reserved.
    held: u64,
    /// Sum of what each of them may still need above its reservation.
    unreserved: u64,
}

/// What one request holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) tokens: u64,
    pub(super) unreserved: u64,
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

    /// Whether a request fits that will `likely` use this much, and `most` at most; changes nothing.
    pub(super) fn check(&self, likely: u64, most: u64) -> Result<Held, Excess> {
        let Some(bucket) = &self.bucket else { return Ok(Held::default()) };
        let debt_left = (bucket.limit() / DEBT_DIVISOR).saturating_sub(self.unreserved);
        let unreserved = most.saturating_sub(likely).min(debt_left);
        let tokens = most - unreserved;
        let wait = match bucket.wait_for(tokens) {
            Some(Duration::ZERO) => return Ok(Held { tokens, unreserved }),
            // Time alone fills the bucket only as far as what is held leaves room.
            Some(wait) if self.held.saturating_add(tokens) > bucket.limit() => {
                Some(wait.max(WAIT_FOR_AN_END))
            }
            wait => wait,
        };
        Err(Excess { limit: bucket.limit(), requested: tokens, available: bucket.available(), wait })
    }

    /// Takes what [`Self::check`] gave, with no change in between.
    pub(super) fn take(&mut self, held: &Held) {
        self.held = self.held.saturating_add(held.tokens);
        self.unreserved = self.unreserved.saturating_add(held.unreserved);
        if let Some(bucket) = &mut self.bucket {
            bucket.take(held.tokens);
        }
    }

    /// Ends what was taken: `used` of it was used, or more.
    pub(super) fn settle(&mut self, held: &Held, used: u64, now: Duration) {
        debug_assert!(self.held >= held.tokens && self.unreserved >= held.unreserved, "a hold is ended once");
        if let Some(bucket) = &mut self.bucket {
            // Until now it was held.
            bucket.refill(now, self.held);
        }
        self.held = self.held.saturating_sub(held.tokens);
        self.unreserved = self.unreserved.saturating_sub(held.unreserved);
        if let Some(bucket) = &mut self.bucket {
            match held.tokens.checked_sub(used) {
                Some(unused) => bucket.give_back(unused, self.held),
                // Above the stated debt only where the limit was cut, or set, while this was in flight.
                None => bucket.take_into_debt(used - held.tokens, bucket.limit() / DEBT_DIVISOR),
            }
        }
    }

    pub(super) fn state(&self) -> Option<LimitState> {
        self.bucket.as_ref().map(state)
    }

    /// Nothing is held, and the bucket, if there is one, is full.
    pub(super) fn is_idle(&mut self, now: Duration) -> bool {
        self.held == 0 && self.unreserved == 0 && is_full(&mut self.bucket, now)
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
