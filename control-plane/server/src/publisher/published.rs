//! What is published at one revision: each resource type as bytes with its digest.

use std::collections::HashSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use weir_schemas::config_snapshot::{ConfigSnapshot, ResourceType, Revision, digest};
use weir_schemas::rpc::config::HeldResources;

/// One resource type, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishedSet {
    pub(crate) kind: ResourceType,
    pub(crate) digest: String,
    pub(crate) json: Arc<[u8]>,
    /// Why a newer state of this type is not published.
    pub(crate) withheld: Option<String>,
}

/// Everything that is published, immutable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) revision: Revision,
    pub(crate) sets: Vec<PublishedSet>,
    /// Nodes that are registered and not retired.
    pub(crate) in_service: HashSet<String>,
    /// When the first of the published keys expires: the list must be made anew then.
    pub(crate) next_expiry: Option<DateTime<Utc>>,
}

impl Published {
    /// Every type's digest, as updates carry it.
    pub(crate) fn digests(&self) -> Vec<HeldResources> {
        let held = |set: &PublishedSet| HeldResources {
            resource_type: set.kind.as_str().to_owned(),
            digest: set.digest.clone(),
        };
        self.sets.iter().map(held).collect()
    }

    /// What to publish for `snapshot`. A type that does not pass its own check is withheld, and what was published
    /// of it before stays; the others, revocations too, go out.
    pub(crate) fn next(&self, snapshot: &ConfigSnapshot, in_service: HashSet<String>) -> Self {
        let resources = &snapshot.resources;
        let set = |&kind: &ResourceType| {
            let Err(error) = resources.check(kind) else {
                let json = resources.to_json(kind);
                return Some(PublishedSet { kind, digest: digest(&json), json: json.into(), withheld: None });
            };
            tracing::error!(%error, resource_type = kind.as_str(), "a resource type is inconsistent and withheld");
            let before = self.sets.iter().find(|set| set.kind == kind)?;
            Some(PublishedSet { withheld: Some(error.to_string()), ..before.clone() })
        };
        Self {
            revision: snapshot.revision,
            sets: ResourceType::ALL.iter().filter_map(set).collect(),
            in_service,
            next_expiry: resources.keys.iter().map(|key| key.expires_at).min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_schemas::config_snapshot::{Limits, ModelLimits, Resources, Tenant, TenantState};
    use weir_schemas::ids::TenantId;

    use super::*;

    fn snapshot(position: u64, weights: &[u32]) -> ConfigSnapshot {
        let tenant = |(n, &weight): (u128, &u32)| Tenant {
            id: TenantId::from_u128(n),
            state: TenantState::Active,
            weight,
            limits: Limits::default(),
            may_overflow: false,
            model_limits: ModelLimits::new(),
        };
        let resources =
            Resources { tenants: (0..).zip(weights).map(tenant).collect(), ..Resources::default() };
        ConfigSnapshot { revision: Revision { epoch: 1, position }, resources }
    }

    #[test]
    fn an_inconsistent_type_is_withheld_and_its_last_good_state_stays() {
        let first = Published::default().next(&snapshot(1, &[1]), HashSet::new());
        let second = first.next(&snapshot(2, &[0]), HashSet::new());
        assert_eq!(second.revision.position, 2);
        let tenants = |published: &Published| published.sets[0].clone();
        assert_eq!(tenants(&second).digest, tenants(&first).digest);
        assert_eq!(tenants(&second).withheld.as_deref(), Some("a tenant's weight is zero"));
        let third = second.next(&snapshot(3, &[2]), HashSet::new());
        assert_ne!(tenants(&third).digest, tenants(&first).digest);
        assert_eq!(tenants(&third).withheld, None);
    }
}
