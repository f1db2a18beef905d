//! Stage 5, admit: may this request run now, by the tenant's and the key's limits? Reserves prompt and expected output,
//! settles to the real count, and releases on every exit (the [`Reservation`] is a drop guard).
//!
//! Limits are this gateway's share (the lease in the snapshot), and every change of them applies with the next
//! request. Nothing here reads a clock: `now` is a monotonic time that comes in. The process begins at
//! [`HISTORY_WINDOW`]; the time before that is what the record log tells of earlier runs ([`History`]).

mod account;
mod expected_output;
mod history;
mod reservation;
mod token_bucket;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_schemas::config_snapshot::Limits;
use weir_schemas::ids::{KeyId, TenantId, VersionId};

use account::{Account, Demand};
pub(crate) use account::{LimitState, RefusalReason};
use expected_output::ExpectedOutput;
pub(crate) use history::{History, PastUse, WINDOW as HISTORY_WINDOW};
pub(crate) use reservation::Reservation;

use crate::authenticate::Principal;
use crate::indexed_config::IndexedConfig;

/// Accounts kept before idle ones are dropped. Only authenticated tenants and keys have one, so the snapshot bounds
/// their number too; this keeps a large installation's idle ones from staying for ever.
const SWEEP_ABOVE: usize = 10_000;

/// What the `x-ratelimit-*` headers say: the tighter of tenant and key, absent where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LimitStates {
    pub(crate) requests: Option<LimitState>,
    pub(crate) tokens: Option<LimitState>,
}

/// Why a request may not run now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused: {reason:?}")]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) limits: LimitStates,
}

/// Size of a request that asks to be admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestSize {
    pub(crate) prompt_tokens: u64,
    /// Of each choice.
    pub(crate) max_tokens: u64,
    /// Sequences that it runs as.
    pub(crate) choices: u64,
}

/// All accounts of this gateway.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    inner: Mutex<Accounts>,
}

/// One lock over all: a critical section is a few dozen integer operations.
#[derive(Debug, Default)]
struct Accounts {
    tenants: HashMap<TenantId, Account>,
    keys: HashMap<KeyId, Account>,
    expected: HashMap<(TenantId, VersionId), ExpectedOutput>,
    history: History,
}

impl Admission {
    /// One that goes on from where an earlier run was.
    pub(crate) fn after(history: History) -> Self {
        Self { inner: Mutex::new(Accounts { history, ..Accounts::default() }) }
    }

    /// Reserves, or says why not; a refused request consumes nothing.
    pub(crate) fn admit(
        self: &Arc<Self>,
        config: &IndexedConfig,
        principal: Principal,
        version: VersionId,
        size: RequestSize,
        now: Duration,
    ) -> Result<(Reservation, LimitStates), Box<Refusal>> {
        let Some(tenant_limits) = tenant_limits(config, principal.tenant) else {
            let limits = LimitStates::default();
            let retry_after = Some(Duration::from_secs(10));
            return Err(Box::new(Refusal { reason: RefusalReason::NoLease, retry_after, limits }));
        };
        let key_limits = config.key(principal.key).map(|key| key.limits).unwrap_or_default();
        let mut guard = self.inner.lock();
        let accounts = &mut *guard;
        accounts.sweep(now);
        let expected = accounts.expected.entry((principal.tenant, version)).or_default();
        let demand = Demand {
            prompt_tokens: size.prompt_tokens,
            expected_tokens: expected.expect(size.max_tokens).saturating_mul(size.choices),
            max_tokens: size.max_tokens.saturating_mul(size.choices),
            sequences: size.choices,
        };
        let Accounts { tenants, keys, history, .. } = accounts;
        let tenant = tenants
            .entry(principal.tenant)
            .or_insert_with(|| history.tenant_account(principal.tenant, &tenant_limits));
        let key =
            keys.entry(principal.key).or_insert_with(|| history.key_account(principal.key, &key_limits));
        tenant.refresh(&tenant_limits, now);
        key.refresh(&key_limits, now);
        let checked = tenant.check(&demand).and_then(|hold| Ok((hold, key.check(&demand)?)));
        match checked {
            Ok((tenant_hold, key_hold)) => {
                tenant.take(&tenant_hold);
                key.take(&key_hold);
                let limits = LimitStates::tighter(tenant, key);
                drop(guard);
                let reservation = Reservation::new(self.clone(), principal, version, tenant_hold, key_hold);
                Ok((reservation, limits))
            }
            Err((reason, retry_after)) => {
                let limits = LimitStates::tighter(tenant, key);
                Err(Box::new(Refusal { reason, retry_after, limits }))
            }
        }
    }

    /// Sequences in flight over all tenants.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.inner.lock().tenants.values().map(Account::in_flight).sum()
    }
}

impl Accounts {
    fn sweep(&mut self, now: Duration) {
        self.history.age(now);
        if self.tenants.len() + self.keys.len() + self.expected.len() > SWEEP_ABOVE {
            self.tenants.retain(|_, account| !account.is_idle(now));
            self.keys.retain(|_, account| !account.is_idle(now));
            let tenants = &self.tenants;
            self.expected.retain(|(tenant, _), _| tenants.contains_key(tenant));
        }
    }
}

impl LimitStates {
    fn tighter(tenant: &Account, key: &Account) -> Self {
        let smaller = |a: Option<LimitState>, b: Option<LimitState>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.remaining < a.remaining { b } else { a }),
            (a, b) => a.or(b),
        };
        let (tenant, key) = (tenant.limit_states(), key.limit_states());
        Self { requests: smaller(tenant.0, key.0), tokens: smaller(tenant.1, key.1) }
    }
}

/// The share that this gateway holds, never above the tenant's own limits; `None` without a lease.
fn tenant_limits(config: &IndexedConfig, tenant: TenantId) -> Option<Limits> {
    let share = config.lease(tenant)?.share;
    let whole = config.tenant(tenant)?.limits;
    let lower = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    Some(Limits {
        tokens_per_minute: lower(share.tokens_per_minute, whole.tokens_per_minute),
        requests_per_minute: lower(share.requests_per_minute, whole.requests_per_minute),
        concurrent_sequences: lower(share.concurrent_sequences, whole.concurrent_sequences),
        max_output_tokens: whole.max_output_tokens,
        max_context_tokens: whole.max_context_tokens,
    })
}

#[cfg(test)]
mod tests;
