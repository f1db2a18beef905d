//! Whose turn it is: virtual token counters.
//!
//! Each tenant's counter grows with the service it gets, divided by its weight, and the tenant with the lowest
//! counter goes first (Sheng et al.: "Fairness in Serving Large Language Models", 2024). A tenant that becomes
//! active is lifted to the lowest active counter, so that nobody saves up service by being idle.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::sequence::TenantIndex;

/// Cost of one prompt token that has to be computed.
pub(super) const INPUT_WEIGHT: f64 = 1.0;
/// Cost of one generated token.
pub(super) const OUTPUT_WEIGHT: f64 = 2.0;

/// Idle tenants whose counters are remembered, so that leaving and coming back is no way to be served more.
/// Beyond it the least served are forgotten, who gain nothing by it.
const IDLE_ACCOUNTS_MAX: usize = 4096;

/// A tenant's account. Whoever is active has one; it is stable as long as somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AccountId(usize);

#[derive(Debug)]
struct Account {
    tenant: TenantIndex,
    counter: f64,
    /// What a token of service costs: the reciprocal of the weight.
    price: f64,
    /// Sequences that wait or run.
    active: u32,
}

#[derive(Debug, Default)]
pub(super) struct FairShare {
    /// By account, so that the step loop looks no tenant up. Those in `unused` are nobody's.
    accounts: Vec<Account>,
    unused: Vec<AccountId>,
    by_tenant: HashMap<TenantIndex, AccountId, FixedState>,
    num_idle: usize,
    /// Counter of the tenant that left last: where a first one starts when nobody is active.
    last_left: f64,
}

impl FairShare {
    /// One more sequence of this tenant.
    pub(super) fn enter(&mut self, tenant: TenantIndex, weight: u32) -> AccountId {
        let price = f64::from(weight.max(1)).recip();
        let id = match self.by_tenant.get(&tenant) {
            Some(&id) => id,
            None => self.open(Account { tenant, counter: f64::NEG_INFINITY, price, active: 0 }),
        };
        if self.accounts[id.0].active == 0 {
            let active = self.accounts.iter().filter(|other| other.active > 0);
            let lowest = active.map(|other| other.counter).min_by(f64::total_cmp);
            let account = &mut self.accounts[id.0];
            account.counter = account.counter.max(lowest.unwrap_or(self.last_left));
            self.num_idle -= 1;
        }
        let account = &mut self.accounts[id.0];
        account.price = price;
        account.active += 1;
        id
    }

    /// One sequence of this tenant less.
    pub(super) fn leave(&mut self, id: AccountId) {
        let account = &mut self.accounts[id.0];
        account.active = account.active.checked_sub(1).expect("a tenant leaves as often as it entered");
        if account.active == 0 {
            self.last_left = account.counter;
            self.num_idle += 1;
            if self.num_idle > IDLE_ACCOUNTS_MAX {
                self.forget_least_served_idle();
            }
        }
    }

    /// Counts service; a negative cost takes back what was charged ahead.
    pub(super) fn charge(&mut self, id: AccountId, cost: f64) {
        let account = &mut self.accounts[id.0];
        account.counter += cost * account.price;
    }

    /// Service so far; lower goes first.
    pub(super) fn counter(&self, id: AccountId) -> f64 {
        self.accounts[id.0].counter
    }

    /// Sequences that have entered and not left.
    pub(super) fn num_active(&self) -> usize {
        self.accounts.iter().map(|account| account.active as usize).sum()
    }

    /// An account that nobody is active in yet.
    fn open(&mut self, account: Account) -> AccountId {
        let tenant = account.tenant;
        let id = if let Some(id) = self.unused.pop() {
            self.accounts[id.0] = account;
            id
        } else {
            self.accounts.push(account);
            AccountId(self.accounts.len() - 1)
        };
        self.by_tenant.insert(tenant, id);
        self.num_idle += 1;
        id
    }

    fn forget_least_served_idle(&mut self) {
        let accounts = &self.accounts;
        let is_idle = |id: &AccountId| accounts[id.0].active == 0;
        let idle = self.by_tenant.values().filter(|id| is_idle(id));
        let mut counters: Vec<f64> = idle.map(|id| accounts[id.0].counter).collect();
        let middle = counters.len() / 2;
        let median = *counters.select_nth_unstable_by(middle, f64::total_cmp).1;
        let unused = &mut self.unused;
        self.by_tenant.retain(|_, id| {
            let is_kept = !is_idle(id) || accounts[id.0].counter > median;
            if !is_kept {
                unused.push(*id);
            }
            is_kept
        });
        self.num_idle = self.by_tenant.values().filter(|id| is_idle(id)).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantIndex = TenantIndex(1);
    const B: TenantIndex = TenantIndex(2);

    #[test]
    fn weight_divides_and_newcomers_are_lifted() {
        let mut fair = FairShare::default();
        let a = fair.enter(A, 2);
        fair.charge(a, 100.0);
        assert_eq!(fair.counter(a), 50.0);
        let b = fair.enter(B, 1);
        assert_eq!(fair.counter(b), 50.0);
        fair.charge(b, 10.0);
        fair.leave(b);
        fair.charge(a, 100.0);
        assert_eq!(fair.enter(B, 1), b);
        assert_eq!(fair.counter(b), 100.0, "idle time is not saved up");
        fair.charge(b, 500.0);
        fair.leave(b);
        fair.enter(B, 1);
        assert_eq!(fair.counter(b), 600.0, "leaving does not forgive");
        fair.enter(B, 1);
        assert_eq!((fair.counter(b), fair.num_active()), (600.0, 3));
    }

    #[test]
    fn first_after_an_idle_time_starts_where_the_last_one_left() {
        let mut fair = FairShare::default();
        let a = fair.enter(A, 1);
        fair.charge(a, 70.0);
        fair.leave(a);
        let b = fair.enter(B, 1);
        assert_eq!(fair.counter(b), 70.0);
    }

    #[test]
    fn idle_accounts_are_bounded_and_the_most_served_remembered() {
        let mut fair = FairShare::default();
        for tenant in 0..3 * IDLE_ACCOUNTS_MAX as u64 {
            let id = fair.enter(TenantIndex(tenant), 1);
            fair.charge(id, 1.0);
            fair.leave(id);
            assert!(fair.accounts.len() <= IDLE_ACCOUNTS_MAX + 1);
            assert_eq!(fair.accounts.len(), fair.by_tenant.len() + fair.unused.len());
        }
        let latest = TenantIndex(3 * IDLE_ACCOUNTS_MAX as u64 - 1);
        let before = fair.accounts[fair.by_tenant[&latest].0].counter;
        let id = fair.enter(latest, 1);
        assert_eq!(fair.counter(id), before);
    }
}
