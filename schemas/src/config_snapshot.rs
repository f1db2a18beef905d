//! Everything a node needs to decide without asking: whole, immutable, revisioned.
//!
//! The control plane publishes each [`ResourceType`] whole; a node applies it whole or keeps its last good one.

mod form;
mod overload;
mod resources;
mod snapshot;

pub use form::{is_ed25519_key, is_http_address};
pub use overload::{Overload, OverloadPolicy, QueueBounds};
pub use resources::{
    Alias, AliasTarget, BudgetState, Deployment, Key, Limits, ModelLimits, PinnedVersion, QuotaLease,
    Replica, Scope, Slo, Tenant, TenantState, VerificationKey,
};
pub use snapshot::{ConfigSnapshot, ResourceError, ResourceType, Resources, Revision, digest};
