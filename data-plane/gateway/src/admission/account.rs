//! What one tenant or key, over all models or on one, has left of its limits. Pure: time and limits are arguments.

use std::time::Duration;

use weir_schemas::config_snapshot::Limits;

use super::history::{KnownFrom, PastUse};
use super::meter::{self, Excess, LimitState, Meter, WAIT_FOR_AN_END};
use super::token_bucket::TokenBucket;

/// An unused account is remembered for this long: a bucket fills in it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// Prompt and generated tokens a minute.
    Tokens,
    /// Prompt tokens a minute.
    InputTokens,
    /// Generated tokens a minute.
    OutputTokens,
    /// Requests a minute.
    Requests,
    /// Sequences at once.
    Concurrency,
}

/// The limits that tokens are metered against, in the order of an account's meters.
const TOKEN_KINDS: [LimitKind; 3] = [LimitKind::Tokens, LimitKind::InputTokens, LimitKind::OutputTokens];

impl LimitKind {
    fn of(self, limits: &Limits) -> Option<u64> {
        match self {
            Self::Tokens => limits.tokens_per_minute,
            Self::InputTokens => limits.input_tokens_per_minute,
            Self::OutputTokens => limits.output_tokens_per_minute,
            Self::Requests => limits.requests_per_minute,
            Self::Concurrency => limits.concurrent_sequences,
        }
    }

    fn counts_output(self) -> bool {
        matches!(self, Self::Tokens | Self::OutputTokens)
    }

    /// How much of a request counts here, once it has run.
    fn counts(self, Used { prompt_tokens, generated_tokens }: Used) -> u64 {
        match self {
            Self::Tokens => prompt_tokens.saturating_add(generated_tokens),
            Self::InputTokens => prompt_tokens,
            Self::OutputTokens => generated_tokens,
            Self::Requests => 1,
            Self::Concurrency => 0,
        }
    }
}

/// Running totals against one set of limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    tokens: [Meter; TOKEN_KINDS.len()],
    requests: Option<TokenBucket>,
    concurrency_limit: Option<u64>,
    in_flight: u64,
    /// Last admission.
    used_at: Option<Duration>,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) prompt_tokens: u64,
    /// What the answer will likely need.
    pub(crate) expected_tokens: u64,
    pub(crate) sequences: u64,
}

/// What a request used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
}

/// What a request holds of one account until it is settled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    tokens: [u64; TOKEN_KINDS.len()],
    pub(super) sequences: u64,
    /// Generated tokens that it is enough for; `None` where no limit counts them.
    pub(super) covers: Option<u64>,
}

impl Account {
    /// As it was at the end of an earlier run, by what was used since. Nothing is in flight.
    pub(crate) fn restored(limits: &Limits, past: &[&PastUse], known: KnownFrom) -> Self {
        let begin = if known.is_whole { TokenBucket::full } else { TokenBucket::empty };
        let bucket = |kind: LimitKind| {
            let limit = kind.of(limits)?;
            let uses = past.iter().map(|past| (past.at, kind.counts(past.used)));
            Some(meter::restored(begin(limit, known.at), uses))
        };
        let tokens = TOKEN_KINDS.map(|kind| Meter::on(bucket(kind)));
        let requests = bucket(LimitKind::Requests);
        Self { tokens, requests, used_at: past.last().map(|past| past.at), ..Self::default() }
    }

    /// Applies the limits in force and what `now` has earned.
    pub(crate) fn refresh(&mut self, limits: &Limits, now: Duration) {
        for (kind, meter) in TOKEN_KINDS.into_iter().zip(&mut self.tokens) {
            meter.refresh(kind.of(limits), self.used_at, now);
        }
        meter::refresh(&mut self.requests, limits.requests_per_minute, self.used_at, now, 0);
        self.concurrency_limit = limits.concurrent_sequences;
    }

    /// Whether `demand` fits; changes nothing. Of several limits in the way, the one that will be so longest.
    pub(crate) fn check(&self, demand: &Demand) -> Result<Hold, (LimitKind, Excess)> {
        let Demand { prompt_tokens, expected_tokens, sequences } = *demand;
        let mut hold = Hold { sequences, ..Hold::default() };
        let mut in_the_way = longer(
            self.concurrency_excess(sequences).map(|excess| (LimitKind::Concurrency, excess)),
            self.requests_excess().map(|excess| (LimitKind::Requests, excess)),
        );
        for ((kind, meter), held) in TOKEN_KINDS.into_iter().zip(&self.tokens).zip(&mut hold.tokens) {
            let counts = |generated_tokens| kind.counts(Used { prompt_tokens, generated_tokens });
            let least = counts(0);
            match meter.check(least, counts(expected_tokens)) {
                Ok(Some(tokens)) => {
                    *held = tokens;
                    let covers = kind.counts_output().then_some(tokens - least);
                    hold.covers = [hold.covers, covers].into_iter().flatten().min();
                }
                Ok(None) => {}
                Err(excess) => in_the_way = longer(in_the_way, Some((kind, excess))),
            }
        }
        in_the_way.map_or(Ok(hold), Err)
    }

    /// Takes a hold that [`Self::check`] gave, with no change in between.
    pub(crate) fn take(&mut self, hold: &Hold, now: Duration) {
        self.in_flight += hold.sequences;
        self.used_at = Some(now);
        if let Some(bucket) = &mut self.requests {
            bucket.take(1);
        }
        for (meter, held) in self.tokens.iter_mut().zip(&hold.tokens) {
            meter.take(*held);
        }
    }

    /// By how many generated tokens requests in flight may now outgrow what they hold.
    pub(crate) fn room_to_grow(&mut self, now: Duration) -> u64 {
        let meters = TOKEN_KINDS.into_iter().zip(&mut self.tokens);
        let of_output = meters.filter(|(kind, _)| kind.counts_output());
        of_output.map(|(_, meter)| meter.room_to_grow(now)).min().unwrap_or(u64::MAX)
    }

    /// Takes what [`Self::room_to_grow`] has, with no change in between.
    pub(crate) fn grow(&mut self, hold: &mut Hold, generated_tokens: u64) {
        for ((kind, meter), held) in TOKEN_KINDS.into_iter().zip(&mut self.tokens).zip(&mut hold.tokens) {
            if kind.counts_output() {
                *held = held.saturating_add(meter.take(generated_tokens));
            }
        }
    }

    /// Ends a hold: the request used this much.
    pub(crate) fn settle(&mut self, hold: &Hold, used: Used, now: Duration) {
        debug_assert!(self.in_flight >= hold.sequences, "a hold is ended once");
        self.in_flight = self.in_flight.saturating_sub(hold.sequences);
        for ((kind, meter), held) in TOKEN_KINDS.into_iter().zip(&mut self.tokens).zip(&hold.tokens) {
            meter.settle(*held, kind.counts(used), now);
        }
    }

    /// Ends a hold of a request that was not served: it consumed nothing, not even a request.
    pub(crate) fn abandon(&mut self, hold: &Hold, now: Duration) {
        self.settle(hold, Used::default(), now);
        if let Some(bucket) = &mut self.requests {
            bucket.refill(now, 0);
            bucket.give_back(1, 0);
        }
    }

    /// For headers.
    pub(crate) fn requests_state(&self) -> Option<LimitState> {
        self.requests.as_ref().map(meter::state)
    }

    /// For headers: of each limit on tokens.
    pub(crate) fn token_states(&self) -> impl Iterator<Item = LimitState> {
        self.tokens.iter().filter_map(Meter::state)
    }

    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Nothing would be forgotten if this account were dropped and made anew.
    pub(crate) fn is_idle(&mut self, now: Duration) -> bool {
        self.in_flight == 0
            && self.used_at.is_none_or(|used_at| now.saturating_sub(used_at) >= REMEMBERED)
            && self.tokens.iter_mut().all(|meter| meter.is_idle(now))
            && meter::is_full(&mut self.requests, now)
    }

    fn concurrency_excess(&self, sequences: u64) -> Option<Excess> {
        let limit = self.concurrency_limit?;
        let available = limit.saturating_sub(self.in_flight);
        let wait = (limit >= sequences).then_some(WAIT_FOR_AN_END);
        (sequences > available).then_some(Excess { limit, requested: sequences, available, wait })
    }

    fn requests_excess(&self) -> Option<Excess> {
        let bucket = self.requests.as_ref()?;
        let wait = bucket.wait_for(1);
        let excess = Excess { limit: bucket.limit(), requested: 1, available: bucket.available(), wait };
        (wait != Some(Duration::ZERO)).then_some(excess)
    }
}

/// Of two limits in the way, the one to wait for.
pub(super) fn longer<N>(a: Option<(N, Excess)>, b: Option<(N, Excess)>) -> Option<(N, Excess)> {
    let wait = |(_, excess): &(N, Excess)| excess.wait.unwrap_or(Duration::MAX);
    match (a, b) {
        (Some(a), Some(b)) => Some(if wait(&b) > wait(&a) { b } else { a }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
