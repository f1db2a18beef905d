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

#[derive(Debug)]
struct Account {
    counter: f64,
    weight: f64,
    /// Sequences that wait or run.
    active: u32,
}

#[derive(Debug, Default)]
pub(super) struct FairShare {
    accounts: HashMap<TenantIndex, Account, FixedState>,
    num_idle: usize,
    /// Counter of the tenant that left last: where a first one starts when nobody is active.
    last_left: f64,
}

impl FairShare {
    /// One more sequence of this tenant.
    pub(super) fn enter(&mut self, tenant: TenantIndex, weight: u32) {
        let weight = f64::from(weight.max(1));
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.weight = weight;
            account.active += 1;
            if account.active > 1 {
                return;
            }
            self.num_idle -= 1;
        } else {
            self.accounts.insert(tenant, Account { counter: f64::NEG_INFINITY, weight, active: 1 });
        }
        let others = self.accounts.iter().filter(|(other, account)| **other != tenant && account.active > 0);
        let lowest = others.map(|(_, account)| account.counter).min_by(f64::total_cmp);
        let account = self.accounts.get_mut(&tenant).expect("entered above");
        account.counter = account.counter.max(lowest.unwrap_or(self.last_left));
    }

    /// One sequence of this tenant less.
    pub(super) fn leave(&mut self, tenant: TenantIndex) {
        let account = self.accounts.get_mut(&tenant).expect("a tenant leaves as often as it entered");
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
    pub(super) fn charge(&mut self, tenant: TenantIndex, cost: f64) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.counter += cost / account.weight;
        }
    }

    /// Service so far; lower goes first.
    pub(super) fn counter(&self, tenant: TenantIndex) -> f64 {
        self.accounts.get(&tenant).map_or(f64::NEG_INFINITY, |account| account.counter)
    }

    /// Sequences that have entered and not left.
    pub(super) fn num_active(&self) -> usize {
        self.accounts.values().map(|account| account.active as usize).sum()
    }

    fn forget_least_served_idle(&mut self) {
        let idle = self.accounts.values().filter(|account| account.active == 0);
        let mut counters: Vec<f64> = idle.map(|account| account.counter).collect();
        let middle = counters.len() / 2;
        let median = *counters.select_nth_unstable_by(middle, f64::total_cmp).1;
        self.accounts.retain(|_, account| account.active > 0 || account.counter > median);
        self.num_idle = self.accounts.values().filter(|account| account.active == 0).count();
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
        fair.enter(A, 2);
        fair.charge(A, 100.0);
        assert_eq!(fair.counter(A), 50.0);
        fair.enter(B, 1);
        assert_eq!(fair.counter(B), 50.0);
        fair.charge(B, 10.0);
        fair.leave(B);
        fair.charge(A, 100.0);
        fair.enter(B, 1);
        assert_eq!(fair.counter(B), 100.0, "idle time is not saved up");
        fair.charge(B, 500.0);
        fair.leave(B);
        fair.enter(B, 1);
        assert_eq!(fair.counter(B), 600.0, "leaving does not forgive");
    }

    #[test]
    fn first_after_an_idle_time_starts_where_the_last_one_left() {
        let mut fair = FairShare::default();
        fair.enter(A, 1);
        fair.charge(A, 70.0);
        fair.leave(A);
        fair.enter(B, 1);
        assert_eq!(fair.counter(B), 70.0);
    }

    #[test]
    fn idle_accounts_are_bounded() {
        let mut fair = FairShare::default();
        for tenant in 0..3 * IDLE_ACCOUNTS_MAX as u64 {
            fair.enter(TenantIndex(tenant), 1);
            fair.charge(TenantIndex(tenant), 1.0);
            fair.leave(TenantIndex(tenant));
            assert!(fair.accounts.len() <= IDLE_ACCOUNTS_MAX + 1);
        }
    }
}
