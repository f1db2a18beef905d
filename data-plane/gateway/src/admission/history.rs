//! What tenants and keys used before this process began, so that a restart gives no burst: an account that is made
//! anew begins where the one before it was.
//!
//! Time here runs from [`WINDOW`] before the process to its start; the process's own time goes on from there. What was
//! used before that, or before the record log's oldest record, is not known: an account is then taken for empty at the
//! beginning, which is exact for whoever had a minute's rest since, and never too generous.

use std::collections::HashMap;
use std::time::Duration;

use weir_schemas::config_snapshot::Limits;
use weir_schemas::ids::{KeyId, TenantId};

use super::account::Account;

/// How far back is looked: ten times what a bucket needs to fill, of which the record log holds at least the last two.
pub(crate) const WINDOW: Duration = Duration::from_secs(600);
/// No account needs its past any more: every bucket has been filled since, debts included.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600 + 120);

/// One request of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PastUse {
    pub(crate) at: Duration,
    pub(crate) tokens: u64,
}

/// All requests of the past that counted.
#[derive(Debug, Default)]
pub(crate) struct History {
    tenants: HashMap<TenantId, Vec<PastUse>>,
    keys: HashMap<KeyId, Vec<PastUse>>,
    pub(super) known_from: Duration,
    /// Nothing at all was used before `known_from`.
    pub(super) is_whole: bool,
}

impl History {
    /// `is_whole`: the gateway began within the window, so there is nothing before what is noted.
    pub(crate) fn new(known_from: Duration, is_whole: bool) -> Self {
        Self { known_from, is_whole, ..Self::default() }
    }

    /// Notes a request. The order does not matter.
    pub(crate) fn note(&mut self, tenant: TenantId, key: KeyId, used: PastUse) {
        self.tenants.entry(tenant).or_default().push(used);
        self.keys.entry(key).or_default().push(used);
    }

    pub(crate) fn requests(&self) -> usize {
        self.tenants.values().map(Vec::len).sum()
    }

    /// The tenant's account as it was at the start of the process. Once only: from then on it is the caller's.
    pub(super) fn tenant_account(&mut self, tenant: TenantId, limits: &Limits) -> Account {
        let past = self.tenants.remove(&tenant);
        self.account(past, limits)
    }

    /// The key's.
    pub(super) fn key_account(&mut self, key: KeyId, limits: &Limits) -> Account {
        let past = self.keys.remove(&key);
        self.account(past, limits)
    }

    /// Forgets what has no meaning any more.
    pub(super) fn age(&mut self, now: Duration) {
        if now > FORGOTTEN_AFTER && !(self.tenants.is_empty() && self.keys.is_empty()) {
            *self = Self::default();
        }
    }

    fn account(&self, past: Option<Vec<PastUse>>, limits: &Limits) -> Account {
        let Some(mut past) = past else { return Account::default() };
        past.sort_unstable_by_key(|used| used.at);
        Account::restored(limits, &past, self.known_from, self.is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::account::Demand;
    use crate::testing::{key, tenant};

    const LIMITS: Limits = Limits {
        tokens_per_minute: Some(600),
        requests_per_minute: Some(10),
        concurrent_sequences: Some(1),
        max_output_tokens: None,
        max_context_tokens: None,
    };

    fn ago(seconds: u64) -> Duration {
        WINDOW - Duration::from_secs(seconds)
    }

    /// Requests and tokens that a restored account has at the start of the process.
    fn remaining(history: &mut History) -> (u64, u64) {
        let mut account = history.tenant_account(tenant(), &LIMITS);
        account.refresh(&LIMITS, WINDOW);
        let (requests, tokens) = account.limit_states();
        (requests.unwrap().remaining, tokens.unwrap().remaining)
    }

    fn used(mut history: History, uses: &[(u64, u64)]) -> History {
        for &(seconds, tokens) in uses {
            history.note(tenant(), key(), PastUse { at: ago(seconds), tokens });
        }
        history
    }

    #[test]
    fn an_account_is_where_it_was() {
        let check = |history: fn() -> History, uses: &[(u64, u64)], expected| {
            assert_eq!(remaining(&mut used(history(), uses)), expected, "{uses:?}");
        };
        let young: fn() -> History = || History::new(ago(300), true);
        let old: fn() -> History = || History::new(Duration::ZERO, false);
        for history in [young, old] {
            // Ten at once, just now, half a minute ago, a minute ago.
            check(history, &[(0, 30); 10], (0, 300));
            check(history, &[(30, 30); 10], (5, 600));
            check(history, &[(60, 30); 10], (10, 600));
            // Noted in any order.
            check(history, &[(0, 100), (60, 600), (6, 0)], (9, 500));
        }
        // A tenant that has no past has all of its limits.
        assert!(History::new(Duration::ZERO, false).tenant_account(tenant(), &LIMITS).is_idle(WINDOW));
    }

    #[test]
    fn who_was_always_at_the_limit_gets_no_burst_and_what_is_unknown_is_not_given() {
        // One request each six seconds is exactly ten a minute.
        let steady: Vec<(u64, u64)> = (0..100).map(|at| (at * 6, 60)).collect();
        let (requests, tokens) = remaining(&mut used(History::new(Duration::ZERO, false), &steady));
        assert!(requests <= 1 && tokens <= 60, "{requests} {tokens}");
        // The log's oldest record is six seconds old, and it is not the first.
        let pruned = History::new(ago(6), false);
        assert_eq!(remaining(&mut used(pruned, &[(6, 0)])), (0, 60));
    }

    #[test]
    fn limits_that_were_higher_before_leave_no_debt_that_could_not_have_been() {
        let mut history = used(History::new(ago(60), true), &[(1, 100_000); 50]);
        let mut account = history.tenant_account(tenant(), &LIMITS);
        account.refresh(&LIMITS, WINDOW);
        let demand = Demand { prompt_tokens: 10, expected_tokens: 1, max_tokens: 1, sequences: 1 };
        let (_, wait) = account.check(&demand).unwrap_err();
        assert!(wait.unwrap() <= Duration::from_secs(60), "{wait:?}");
        // The key's account has its own.
        assert!(!history.key_account(key(), &LIMITS).is_idle(WINDOW));
        assert!(history.key_account(key(), &LIMITS).is_idle(WINDOW), "given once");
    }

    #[test]
    fn it_is_forgotten_when_it_means_nothing_any_more() {
        let mut history = used(History::new(Duration::ZERO, false), &[(0, 600)]);
        history.age(WINDOW + Duration::from_secs(60));
        assert_eq!(history.requests(), 1);
        history.age(WINDOW + Duration::from_secs(121));
        assert_eq!(history.requests(), 0);
    }
}
