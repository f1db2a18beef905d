//! One secret value for each tenant, at the root of its prefix-cache hash chains: tenants never share cached
//! blocks, and what one's prompts were cannot be told from another's timing.

use sha2::{Digest, Sha256};
use weir_schemas::ids::TenantId;
use weir_schemas::rpc::auth::InternalSecret;

/// Makes salts; differs between installations.
#[derive(Clone)]
pub(crate) struct CacheSalt {
    domain: [u8; 32],
}

impl CacheSalt {
    pub(crate) fn new(secret: &InternalSecret) -> Self {
        Self { domain: secret.derive("weir.prefix-cache-salt.v1") }
    }

    pub(crate) fn of(&self, tenant: TenantId) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(self.domain);
        hasher.update(tenant.as_u128().to_be_bytes());
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_and_installations_differ() {
        let salt =
            |secret: char| CacheSalt::new(&InternalSecret::new(&secret.to_string().repeat(32)).unwrap());
        let (a, b) = (TenantId::from_u128(1), TenantId::from_u128(2));
        assert_eq!(salt('x').of(a), salt('x').of(a));
        assert_ne!(salt('x').of(a), salt('x').of(b));
        assert_ne!(salt('x').of(a), salt('y').of(a));
    }
}
