//! What one tenant, or one key, has left of its limits. Pure: time and limits are arguments.

use std::time::Duration;

use weir_schemas::config_snapshot::Limits;

use super::history::PastUse;
use super::token_bucket::TokenBucket;

/// Tokens by which the answers in flight may, together, outgrow their reservations: a quarter of a minute's limit.
/// What they may need beyond it is reserved up front, so the debt of a bucket never exceeds this.
const DEBT_DIVISOR: u64 = 4;

/// Running totals against one set of limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    tokens: Option<TokenBucket>,
    requests: Option<TokenBucket>,
    concurrency_limit: Option<u64>,
    in_flight: u64,
    /// Sum over the requests in flight of what each may still need above its reservation.
    unreserved: u64,
    known: bool,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) prompt_tokens: u64,
    /// What the answer will likely need, at most `max_tokens`.
    pub(crate) expected_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) sequences: u64,
}

/// What a request holds of one account until it is settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    tokens: u64,
    unreserved: u64,
    pub(super) sequences: u64,
}

impl Hold {
    #[cfg(test)]
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// Which limit stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// This gateway has no share of the tenant's limits.
    NoLease,
    /// Tokens a minute: not enough now.
    Tokens { limit: u64, requested: u64, available: u64 },
    /// Tokens a minute: more than a minute's limit, never enough.
    TooLarge { limit: u64, requested: u64 },
    /// Requests a minute.
    Requests { limit: u64 },
    /// Sequences at once.
    Concurrency { limit: u64 },
}

/// One per-minute limit as the `x-ratelimit-*` headers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitState {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: Duration,
}

impl Account {
    /// As it was at the end of an earlier run, by what was used since `known_from`; unless nothing was used before
    /// that, it is taken for empty then. Nothing is in flight.
    pub(crate) fn restored(limits: &Limits, past: &[PastUse], known_from: Duration, is_whole: bool) -> Self {
        let bucket = |limit: u64, amount: fn(&PastUse) -> u64| {
            let begin = if is_whole { TokenBucket::full } else { TokenBucket::empty };
            let mut bucket = begin(limit, known_from);
            for used in past {
                bucket.refill(used.at);
                // Under a higher limit more may have been used than this one would have admitted.
                bucket.take_into_debt(amount(used), limit / DEBT_DIVISOR);
            }
            bucket
        };
        Self {
            tokens: limits.tokens_per_minute.map(|limit| bucket(limit, |used| used.tokens)),
            requests: limits.requests_per_minute.map(|limit| bucket(limit, |_| 1)),
            known: true,
            ..Self::default()
        }
    }

    /// Applies the limits in force and what `now` has earned.
    pub(crate) fn refresh(&mut self, limits: &Limits, now: Duration) {
        refresh_bucket(&mut self.tokens, limits.tokens_per_minute, self.known, now);
        refresh_bucket(&mut self.requests, limits.requests_per_minute, self.known, now);
        self.concurrency_limit = limits.concurrent_sequences;
        self.known = true;
    }

    /// Whether `demand` fits; changes nothing. The wait is `None` where time will not help.
    pub(crate) fn check(&self, demand: &Demand) -> Result<Hold, (RefusalReason, Option<Duration>)> {
        if let Some(limit) = self.concurrency_limit
            && self.in_flight + demand.sequences > limit
        {
            // When one of the running will end is not known; a second is the usual advice.
            let wait = (limit >= demand.sequences).then_some(Duration::from_secs(1));
            return Err((RefusalReason::Concurrency { limit }, wait));
        }
        if let Some(bucket) = &self.requests {
            let wait = bucket.wait_for(1);
            if wait != Some(Duration::ZERO) {
                return Err((RefusalReason::Requests { limit: bucket.limit() }, wait));
            }
        }
        let hold = self.hold_for(demand);
        if let Some(bucket) = &self.tokens {
            let (limit, requested) = (bucket.limit(), hold.tokens);
            match bucket.wait_for(requested) {
                Some(Duration::ZERO) => {}
                Some(wait) => {
                    let reason = RefusalReason::Tokens { limit, requested, available: bucket.available() };
                    return Err((reason, Some(wait)));
                }
                None => return Err((RefusalReason::TooLarge { limit, requested }, None)),
            }
        }
        Ok(hold)
    }

    /// Takes a hold that [`Self::check`] gave, with no change in between.
    pub(crate) fn take(&mut self, hold: &Hold) {
        self.in_flight += hold.sequences;
        self.unreserved += hold.unreserved;
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.take(hold.tokens);
        }
    }

    /// Ends a hold: the request used `used_tokens`.
    pub(crate) fn settle(&mut self, hold: &Hold, used_tokens: u64) {
        self.release(hold);
        if let Some(bucket) = &mut self.tokens {
            match hold.tokens.checked_sub(used_tokens) {
                Some(unused) => bucket.give_back(unused),
                None => bucket.take(used_tokens - hold.tokens),
            }
        }
    }

    /// Ends a hold of a request that was not served: it consumed nothing, not even a request.
    pub(crate) fn abandon(&mut self, hold: &Hold) {
        self.release(hold);
        if let Some(bucket) = &mut self.requests {
            bucket.give_back(1);
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.give_back(hold.tokens);
        }
    }

    /// For headers: requests, tokens.
    pub(crate) fn limit_states(&self) -> (Option<LimitState>, Option<LimitState>) {
        let state = |bucket: &TokenBucket| LimitState {
            limit: bucket.limit(),
            remaining: bucket.available(),
            reset: bucket.time_to_full(),
        };
        (self.requests.as_ref().map(state), self.tokens.as_ref().map(state))
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Nothing would be forgotten if this account were dropped and made anew.
    pub(crate) fn is_idle(&mut self, now: Duration) -> bool {
        let full = |bucket: &mut Option<TokenBucket>| {
            bucket.as_mut().is_none_or(|bucket| {
                bucket.refill(now);
                bucket.is_full()
            })
        };
        self.in_flight == 0 && full(&mut self.tokens) && full(&mut self.requests)
    }

    fn release(&mut self, hold: &Hold) {
        debug_assert!(
            self.in_flight >= hold.sequences && self.unreserved >= hold.unreserved,
            "a hold is ended once"
        );
        self.in_flight = self.in_flight.saturating_sub(hold.sequences);
        self.unreserved = self.unreserved.saturating_sub(hold.unreserved);
    }

    fn hold_for(&self, demand: &Demand) -> Hold {
        let sequences = demand.sequences;
        let Some(bucket) = &self.tokens else { return Hold { sequences, ..Hold::default() } };
        let expected = demand.expected_tokens.min(demand.max_tokens);
        let debt_left = (bucket.limit() / DEBT_DIVISOR).saturating_sub(self.unreserved);
        let unreserved = (demand.max_tokens - expected).min(debt_left);
        let tokens = demand.prompt_tokens.saturating_add(demand.max_tokens - unreserved);
        Hold { tokens, unreserved, sequences }
    }
}

/// `known`: this account has run before, so a limit that appears now starts empty and gives no burst.
fn refresh_bucket(bucket: &mut Option<TokenBucket>, limit: Option<u64>, known: bool, now: Duration) {
    match (bucket.as_mut(), limit) {
        (Some(bucket), Some(limit)) if bucket.limit() != limit => bucket.set_limit(limit, now),
        (Some(bucket), Some(_)) => bucket.refill(now),
        (None, Some(limit)) if known => *bucket = Some(TokenBucket::empty(limit, now)),
        (None, Some(limit)) => *bucket = Some(TokenBucket::full(limit, now)),
        (_, None) => *bucket = None,
    }
}

#[cfg(test)]
mod tests;
