//! What tenants and keys used before this process began, so that a restart gives no burst: an account that is made
//! anew begins where the one before it was.
//!
//! Time here runs from [`WINDOW`] before the process to its start; the process's own time goes on from there. What was
//! used before that, or before the record log's oldest record, is not known: an account is then taken for empty at the
//! beginning, which is exact for whoever had a minute's rest since, and never too generous.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_schemas::ids::{KeyId, TenantId};

use super::account::Used;
use super::owner::{Owner, OwnerLimits};

/// How far back is looked: ten times what a bucket needs to fill, of which the record log holds at least the last two.
pub(crate) const WINDOW: Duration = Duration::from_secs(600);
/// No account needs its past any more: every bucket has been filled since, debts included.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600 + 120);

/// One request of the past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PastUse {
    pub(crate) at: Duration,
    /// As the client named it.
    pub(crate) model: Arc<str>,
    pub(crate) used: Used,
}

/// Since when everything is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KnownFrom {
    pub(super) at: Duration,
    /// Nothing at all was used before.
    pub(super) is_whole: bool,
}

/// All requests of the past that counted.
#[derive(Debug, Default)]
pub(crate) struct History {
    tenants: HashMap<TenantId, Vec<PastUse>>,
    keys: HashMap<KeyId, Vec<PastUse>>,
    known: KnownFrom,
}

impl History {
    /// `is_whole`: the gateway began within the window, so there is nothing before what is noted.
    pub(crate) fn new(known_from: Duration, is_whole: bool) -> Self {
        Self { known: KnownFrom { at: known_from, is_whole }, ..Self::default() }
    }

    /// Notes a request. The order does not matter.
    pub(crate) fn note(&mut self, tenant: TenantId, key: KeyId, used: PastUse) {
        self.tenants.entry(tenant).or_default().push(used.clone());
        self.keys.entry(key).or_default().push(used);
    }

    pub(crate) fn requests(&self) -> usize {
        self.tenants.values().map(Vec::len).sum()
    }

    /// The tenant's accounts as they were at the start of the process. Once only: from then on they are the caller's.
    pub(super) fn tenant(&mut self, tenant: TenantId, limits: &OwnerLimits<'_>) -> Owner {
        let past = self.tenants.remove(&tenant);
        self.owner(past, limits)
    }

    /// The key's.
    pub(super) fn key(&mut self, key: KeyId, limits: &OwnerLimits<'_>) -> Owner {
        let past = self.keys.remove(&key);
        self.owner(past, limits)
    }

    /// Forgets what has no meaning any more.
    pub(super) fn age(&mut self, now: Duration) {
        if now > FORGOTTEN_AFTER && !(self.tenants.is_empty() && self.keys.is_empty()) {
            *self = Self::default();
        }
    }

    fn owner(&self, past: Option<Vec<PastUse>>, limits: &OwnerLimits<'_>) -> Owner {
        let Some(mut past) = past else { return Owner::default() };
        past.sort_by_key(|past| past.at);
        Owner::restored(limits, &past, self.known)
    }
}

#[cfg(test)]
mod tests {
    use weir_schemas::config_snapshot::Limits;

    use super::*;
    use crate::admission::account::{Account, Demand};
    use crate::testing::{MODEL, key, tenant};

    const LIMITS: Limits = Limits {
        tokens_per_minute: Some(600),
        input_tokens_per_minute: Some(400),
        output_tokens_per_minute: None,
        requests_per_minute: Some(10),
        concurrent_sequences: Some(1),
        max_output_tokens: None,
        max_context_tokens: None,
    };

    fn ago(seconds: u64) -> Duration {
        WINDOW - Duration::from_secs(seconds)
    }

    fn owner(history: &mut History) -> Owner {
        history.tenant(tenant(), &OwnerLimits::same(&LIMITS))
    }

    fn left(account: &mut Account) -> (u64, Vec<u64>) {
        account.refresh(&LIMITS, WINDOW);
        let tokens = account.token_states().map(|state| state.remaining).collect();
        (account.requests_state().unwrap().remaining, tokens)
    }

    /// Requests, tokens and input tokens that a restored account has at the start of the process.
    fn remaining(history: &mut History) -> (u64, u64, u64) {
        let mut owner = owner(history);
        let [whole, on_model] = owner.accounts(&MODEL.into());
        let (requests, tokens) = left(whole);
        assert_eq!(left(on_model), (requests, tokens.clone()), "the model that all of it was on");
        assert_eq!(left(owner.accounts(&"another".into())[1]), (10, vec![600, 400]));
        (requests, tokens[0], tokens[1])
    }

    fn used(mut history: History, uses: &[(u64, u64, u64)]) -> History {
        for &(seconds, prompt_tokens, generated_tokens) in uses {
            let used = Used { prompt_tokens, generated_tokens };
            history.note(tenant(), key(), PastUse { at: ago(seconds), model: MODEL.into(), used });
        }
        history
    }

    #[test]
    fn an_account_is_where_it_was() {
        let check = |history: fn() -> History, uses: &[(u64, u64, u64)], expected| {
            assert_eq!(remaining(&mut used(history(), uses)), expected, "{uses:?}");
        };
        let young: fn() -> History = || History::new(ago(300), true);
        let old: fn() -> History = || History::new(Duration::ZERO, false);
        for history in [young, old] {
            // Ten at once, just now, half a minute ago, a minute ago.
            check(history, &[(0, 10, 20); 10], (0, 300, 300));
            check(history, &[(30, 10, 20); 10], (5, 600, 400));
            check(history, &[(60, 10, 20); 10], (10, 600, 400));
            // Noted in any order.
            check(history, &[(0, 50, 50), (60, 300, 300), (6, 0, 0)], (9, 500, 350));
        }
        // A tenant that has no past has all of its limits.
        assert!(owner(&mut History::new(Duration::ZERO, false)).sweep(WINDOW));
    }

    #[test]
    fn who_was_always_at_the_limit_gets_no_burst_and_what_is_unknown_is_not_given() {
        // One request each six seconds is exactly ten a minute.
        let steady: Vec<(u64, u64, u64)> = (0..100).map(|at| (at * 6, 40, 20)).collect();
        let (requests, tokens, input) = remaining(&mut used(History::new(Duration::ZERO, false), &steady));
        assert!(requests <= 1 && tokens <= 60 && input <= 40, "{requests} {tokens} {input}");
        // The log's oldest record is six seconds old, and it is not the first.
        let pruned = History::new(ago(6), false);
        assert_eq!(remaining(&mut used(pruned, &[(6, 0, 0)])), (0, 60, 40));
    }

    #[test]
    fn limits_that_were_higher_before_leave_no_debt_that_could_not_have_been() {
        let mut history = used(History::new(ago(60), true), &[(1, 50_000, 50_000); 50]);
        let mut owner = owner(&mut history);
        let [whole, _] = owner.accounts(&MODEL.into());
        whole.refresh(&LIMITS, WINDOW);
        let demand = Demand { prompt_tokens: 10, expected_tokens: 1, sequences: 1 };
        let (_, excess) = whole.check(&demand).unwrap_err();
        assert!(excess.wait.unwrap() <= Duration::from_secs(60), "{excess:?}");
        // The key's account has its own.
        let limits = OwnerLimits::same(&LIMITS);
        assert!(!history.key(key(), &limits).sweep(WINDOW));
        assert!(history.key(key(), &limits).sweep(WINDOW), "given once");
    }

    #[test]
    fn it_is_forgotten_when_it_means_nothing_any_more() {
        let mut history = used(History::new(Duration::ZERO, false), &[(0, 300, 300)]);
        history.age(WINDOW + Duration::from_secs(60));
        assert_eq!(history.requests(), 1);
        history.age(WINDOW + Duration::from_secs(121));
        assert_eq!(history.requests(), 0);
    }
}
