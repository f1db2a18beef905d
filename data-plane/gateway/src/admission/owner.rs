//! The accounts of one tenant, or one key: one over all models, and one for each model that it has called. The model is
//! the name that clients call it by, as its limits state it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_schemas::config_snapshot::{Limits, ModelLimits};

use super::account::Account;
use super::history::{KnownFrom, PastUse};
use crate::authenticate::Principal;
use crate::indexed_config::IndexedConfig;

/// Accounts of one owner. A model has one whether or not it has limits, so that a limit set later gives no burst.
#[derive(Debug, Default)]
pub(super) struct Owner {
    whole: Account,
    models: HashMap<Arc<str>, Account>,
}

impl Owner {
    /// As it was at the end of an earlier run, by what was used since, in order.
    pub(super) fn restored(limits: &OwnerLimits<'_>, past: &[PastUse], known: KnownFrom) -> Self {
        let mut by_model: HashMap<Arc<str>, Vec<&PastUse>> = HashMap::new();
        for past in past {
            by_model.entry(past.model.clone()).or_default().push(past);
        }
        let models = by_model
            .into_iter()
            .map(|(model, past)| {
                let account = Account::restored(&limits.of_model(&model), &past, known);
                (model, account)
            })
            .collect();
        let whole = Account::restored(&limits.whole, &past.iter().collect::<Vec<_>>(), known);
        Self { whole, models }
    }

    /// What a request to `model` counts against: the account over all models, and the model's own.
    pub(super) fn accounts(&mut self, model: &Arc<str>) -> [&mut Account; 2] {
        [&mut self.whole, self.models.entry(model.clone()).or_default()]
    }

    /// Drops the models' accounts that nothing would be forgotten with; true if that holds for all of this owner.
    pub(super) fn sweep(&mut self, now: Duration) -> bool {
        self.models.retain(|_, account| !account.is_idle(now));
        self.models.is_empty() && self.whole.is_idle(now)
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> u64 {
        self.whole.in_flight()
    }
}

/// The limits of one owner as the config in force states them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnerLimits<'c> {
    whole: Limits,
    by_model: Option<&'c ModelLimits>,
    /// Of the limits on models, what this gateway holds.
    shares: Option<&'c ModelLimits>,
}

impl<'c> OwnerLimits<'c> {
    /// The share that this gateway holds, never above the tenant's own limits; `None` without a lease.
    pub(super) fn of_tenant(config: &'c IndexedConfig, principal: Principal) -> Option<Self> {
        let lease = config.lease(principal.tenant)?;
        let tenant = config.tenant(principal.tenant)?;
        Some(Self {
            whole: lease.share.lower(tenant.limits),
            by_model: Some(&tenant.model_limits),
            shares: Some(&lease.model_shares),
        })
    }

    pub(super) fn of_key(config: &'c IndexedConfig, principal: Principal) -> Self {
        config.key(principal.key).map_or_else(Self::default, |key| Self {
            whole: key.limits,
            by_model: Some(&key.model_limits),
            shares: None,
        })
    }

    /// Over all models, and on each as much.
    #[cfg(test)]
    pub(super) fn same(limits: &Limits) -> Self {
        let by_model = ["another", crate::testing::MODEL].map(|model| (model.to_owned(), *limits));
        Self { whole: *limits, by_model: Some(Box::leak(Box::new(by_model.into()))), shares: None }
    }

    /// For both accounts of [`Owner::accounts`].
    pub(super) fn for_accounts(&self, model: &str) -> [Limits; 2] {
        [self.whole, self.of_model(model)]
    }

    fn of_model(&self, model: &str) -> Limits {
        let stated = |limits: Option<&ModelLimits>| limits.and_then(|limits| limits.get(model).copied());
        stated(self.by_model).unwrap_or_default().lower(stated(self.shares).unwrap_or_default())
    }
}
