//! Stage 5, admit: may this request run now, by the limits of the tenant and of the key, over all models and on the one
//! it calls? Reserves prompt and expected output, settles to the real count, and releases on every exit (the
//! [`Reservation`] is a drop guard).
//!
//! Limits are this gateway's share (the lease in the snapshot), and every change of them applies with the next
//! request. Time is monotonic and comes in as a function ([`Stopwatch`]). The process begins at [`HISTORY_WINDOW`]; the
//! time before that is what the record log tells of earlier runs ([`History`]).
//!
//! Promised of each limit on tokens: what is settled in any stretch of time is at most the limit times its length, one
//! minute's limit (the burst), and a quarter of it (the debt of answers that outgrew their reservations). A request
//! reserves what its answer will likely need, not what it may need at most; while it runs it takes more as the limit has
//! room ([`Allowance`]), and where there is none left its answer ends. The price is that no more than a minute's limit
//! and the debt can be held by requests in flight.

mod account;
mod expected_output;
mod history;
mod meter;
mod owner;
mod reservation;
mod stopwatch;
mod token_bucket;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_schemas::ids::{KeyId, TenantId, VersionId};

use account::{Account, Demand, Hold, longer};
pub(crate) use account::{LimitKind, Used};
use expected_output::ExpectedOutput;
pub(crate) use history::{History, PastUse, WINDOW as HISTORY_WINDOW};
pub(crate) use meter::{Excess, LimitState};
use owner::{Owner, OwnerLimits};
use reservation::ReservedFor;
pub(crate) use reservation::{Allowance, Reservation};
pub(crate) use stopwatch::Stopwatch;

use crate::authenticate::Principal;
use crate::indexed_config::IndexedConfig;

/// How often accounts are looked through for idle ones.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// What answers lately needed is forgotten with its tenant's accounts only above this many: some 300 bytes each.
const EXPECTED_KEPT: usize = 10_000;
/// Told where this gateway has no share; the control plane gives it one as soon as it can.
const NO_LEASE_RETRY_AFTER: Duration = Duration::from_secs(10);

/// What the `x-ratelimit-*` headers say: the tightest that the request counts against, absent where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LimitStates {
    pub(crate) requests: Option<LimitState>,
    pub(crate) tokens: Option<LimitState>,
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitScope {
    Tenant,
    TenantOnModel,
    Key,
    KeyOnModel,
}

impl LimitScope {
    /// Every scope, in the order of the accounts of a request.
    const ALL: [Self; 4] = [Self::Tenant, Self::TenantOnModel, Self::Key, Self::KeyOnModel];
}

/// Which limit stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// This gateway has no share of the tenant's limits.
    NoLease,
    /// A limit; of several the one to wait for.
    Limit { scope: LimitScope, kind: LimitKind, excess: Excess },
}

/// Why a request may not run now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused: {reason:?}")]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    /// As the client named it.
    pub(crate) model: Arc<str>,
    pub(crate) limits: LimitStates,
}

impl Refusal {
    /// When to come again; `None` where that will not help.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            RefusalReason::NoLease => Some(NO_LEASE_RETRY_AFTER),
            RefusalReason::Limit { excess, .. } => excess.wait,
        }
    }
}

/// What asks to be admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'r> {
    pub(crate) principal: Principal,
    /// As the client named it.
    pub(crate) model: &'r str,
    pub(crate) version: VersionId,
    pub(crate) size: RequestSize,
}

/// Size of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSize {
    pub(crate) prompt_tokens: u64,
    /// Of each choice.
    pub(crate) max_tokens: u64,
    /// Sequences that it runs as.
    pub(crate) choices: u64,
}

/// All accounts of this gateway.
#[derive(Debug)]
pub(crate) struct Admission {
    stopwatch: Stopwatch,
    /// One lock over all: a critical section is a few dozen integer operations.
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    tenants: HashMap<TenantId, Owner>,
    keys: HashMap<KeyId, Owner>,
    expected: HashMap<(TenantId, VersionId), ExpectedOutput>,
    history: History,
    swept_at: Duration,
}

impl Admission {
    /// One that goes on from where an earlier run was.
    pub(crate) fn new(history: History, stopwatch: Stopwatch) -> Self {
        Self { stopwatch, accounts: Mutex::new(Accounts { history, ..Accounts::default() }) }
    }

    /// Reserves, or says why not; a refused request consumes nothing.
    pub(crate) fn admit(
        self: &Arc<Self>,
        config: &IndexedConfig,
        request: Request<'_>,
    ) -> Result<(Reservation, LimitStates), Box<Refusal>> {
        let Request { principal, version, size, .. } = request;
        let of = ReservedFor { principal, model: request.model.into(), version };
        let refused = |reason, limits| Box::new(Refusal { reason, model: request.model.into(), limits });
        let Some(tenant_limits) = OwnerLimits::of_tenant(config, principal) else {
            return Err(refused(RefusalReason::NoLease, LimitStates::default()));
        };
        let key_limits = OwnerLimits::of_key(config, principal);
        let mut accounts = self.accounts.lock();
        let now = self.stopwatch.elapsed();
        accounts.sweep(now);
        accounts.open(principal, &tenant_limits, &key_limits);
        let demand = Demand {
            prompt_tokens: size.prompt_tokens,
            expected_tokens: accounts.expected(&of).expect(size.max_tokens).saturating_mul(size.choices),
            sequences: size.choices,
        };
        let mut held = accounts.of(&of);
        let limits = [tenant_limits, key_limits].map(|limits| limits.for_accounts(request.model));
        for (account, limits) in held.iter_mut().zip(limits.as_flattened()) {
            account.refresh(limits, now);
        }
        match check(&held, &demand) {
            Ok(holds) => {
                held.iter_mut().zip(&holds).for_each(|(account, hold)| account.take(hold, now));
                let states = LimitStates::tightest(&held);
                drop(accounts);
                let max_tokens = size.max_tokens.saturating_mul(size.choices);
                Ok((Reservation::new(self.clone(), of, max_tokens, holds), states))
            }
            Err((scope, kind, excess)) => {
                let reason = RefusalReason::Limit { scope, kind, excess };
                Err(refused(reason, LimitStates::tightest(&held)))
            }
        }
    }

    /// Sequences in flight over all tenants.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.accounts.lock().tenants.values().map(Owner::in_flight).sum()
    }
}

impl Accounts {
    /// What a request counts against, in the order of [`LimitScope::ALL`].
    fn of(&mut self, of: &ReservedFor) -> [&mut Account; LimitScope::ALL.len()] {
        let [tenant, tenant_on_model] =
            self.tenants.entry(of.principal.tenant).or_default().accounts(&of.model);
        let [key, key_on_model] = self.keys.entry(of.principal.key).or_default().accounts(&of.model);
        [tenant, tenant_on_model, key, key_on_model]
    }

    fn expected(&mut self, of: &ReservedFor) -> &mut ExpectedOutput {
        self.expected.entry((of.principal.tenant, of.version)).or_default()
    }

    /// Whoever is new here begins where an earlier run left it.
    fn open(&mut self, principal: Principal, tenant_limits: &OwnerLimits<'_>, key_limits: &OwnerLimits<'_>) {
        let Self { tenants, keys, history, .. } = self;
        tenants.entry(principal.tenant).or_insert_with(|| history.tenant(principal.tenant, tenant_limits));
        keys.entry(principal.key).or_insert_with(|| history.key(principal.key, key_limits));
    }

    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        self.history.age(now);
        self.tenants.retain(|_, owner| !owner.sweep(now));
        self.keys.retain(|_, owner| !owner.sweep(now));
        if self.expected.len() > EXPECTED_KEPT {
            let tenants = &self.tenants;
            self.expected.retain(|(tenant, _), _| tenants.contains_key(tenant));
        }
    }
}

/// All or nothing: what to hold of each account, or the limit to wait for.
fn check(
    accounts: &[&mut Account; LimitScope::ALL.len()],
    demand: &Demand,
) -> Result<[Hold; LimitScope::ALL.len()], (LimitScope, LimitKind, Excess)> {
    let mut holds = [Hold::default(); LimitScope::ALL.len()];
    let mut in_the_way = None;
    for ((account, scope), hold) in accounts.iter().zip(LimitScope::ALL).zip(&mut holds) {
        match account.check(demand) {
            Ok(fits) => *hold = fits,
            Err((kind, excess)) => in_the_way = longer(in_the_way, Some(((scope, kind), excess))),
        }
    }
    match in_the_way {
        Some(((scope, kind), excess)) => Err((scope, kind, excess)),
        None => Ok(holds),
    }
}

impl LimitStates {
    fn tightest(accounts: &[&mut Account]) -> Self {
        let remaining = |state: &LimitState| state.remaining;
        Self {
            requests: accounts.iter().filter_map(|account| account.requests_state()).min_by_key(remaining),
            tokens: accounts.iter().flat_map(|account| account.token_states()).min_by_key(remaining),
        }
    }
}

#[cfg(test)]
mod tests;
