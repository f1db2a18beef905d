//! What an admitted request holds. Ended exactly once: settled with the real count, or, dropped without that,
//! abandoned as if it had never been.

use std::sync::Arc;

use weir_schemas::ids::VersionId;

use super::Admission;
use super::account::Hold;
use crate::authenticate::Principal;

/// A drop guard over the tenant's and the key's hold; one a request, however many attempts.
#[derive(Debug)]
pub(crate) struct Reservation {
    admission: Arc<Admission>,
    principal: Principal,
    version: VersionId,
    tenant: Hold,
    key: Hold,
    settled: bool,
}

impl Reservation {
    pub(super) fn new(
        admission: Arc<Admission>,
        principal: Principal,
        version: VersionId,
        tenant: Hold,
        key: Hold,
    ) -> Self {
        Self { admission, principal, version, tenant, key, settled: false }
    }

    /// Ends the reservation: the request used these many prompt and generated tokens. `complete` answers teach what
    /// to expect of the next.
    pub(crate) fn settle(mut self, prompt_tokens: u64, generated_tokens: u64, complete: bool) {
        self.settled = true;
        let used = prompt_tokens.saturating_add(generated_tokens);
        let mut accounts = self.admission.inner.lock();
        if let Some(account) = accounts.tenants.get_mut(&self.principal.tenant) {
            account.settle(&self.tenant, used);
        }
        if let Some(account) = accounts.keys.get_mut(&self.principal.key) {
            account.settle(&self.key, used);
        }
        if complete && let Some(expected) = accounts.expected.get_mut(&(self.principal.tenant, self.version))
        {
            let choices = self.tenant.sequences.max(1);
            (0..choices).for_each(|_| expected.record(generated_tokens / choices));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let mut accounts = self.admission.inner.lock();
        if let Some(account) = accounts.tenants.get_mut(&self.principal.tenant) {
            account.abandon(&self.tenant);
        }
        if let Some(account) = accounts.keys.get_mut(&self.principal.key) {
            account.abandon(&self.key);
        }
    }
}
