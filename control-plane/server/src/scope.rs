//! Proofs of who asks. Only [`crate::auth`] makes them; every `store` function that reads a tenant's data takes one
//! first, so that no path can forget to say on whose behalf it reads.

use weir_schemas::ids::TenantId;

/// The caller may act within this tenant. Reads under it run as the role `weir_tenant`, behind row-level security.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TenantScope(TenantId);

impl TenantScope {
    /// States that the caller may; for `auth`, which has checked it, and for tests.
    pub(crate) const fn proven(tenant: TenantId) -> Self {
        Self(tenant)
    }

    /// Whose data.
    pub(crate) const fn tenant(self) -> TenantId {
        self.0
    }
}

/// The caller may act on the whole platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlatformScope(());

impl PlatformScope {
    /// States that the caller may; for `auth`, which has checked it, for the process itself, and for tests.
    pub(crate) const fn proven() -> Self {
        Self(())
    }
}

/// Either proof, for what both may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadScope {
    /// Everything.
    Platform(PlatformScope),
    /// One tenant's.
    Tenant(TenantScope),
}
