//! The config snapshot in force, indexed for look-ups, and swapped whole. Never changed in place: a request takes one
//! [`IndexedConfig`] at its start and decides everything by it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use weir_schemas::config_snapshot::{
    Alias, ConfigSnapshot, Deployment, Key, PinnedVersion, QuotaLease, Replica, ResourceType, Resources,
    Revision, Tenant,
};
use weir_schemas::ids::{GatewayId, KeyId, SigningKeyId, TenantId, VersionId, WorkerId};

use crate::authenticate::{VerifiedTokens, Verifier};

/// The config that new requests see.
#[derive(Debug)]
pub(crate) struct CurrentConfig {
    gateway: GatewayId,
    current: ArcSwap<IndexedConfig>,
}

impl CurrentConfig {
    pub(crate) fn new(gateway: GatewayId, snapshot: Arc<ConfigSnapshot>) -> Self {
        Self { gateway, current: ArcSwap::from_pointee(IndexedConfig::new(gateway, snapshot, None)) }
    }

    /// What is in force now.
    pub(crate) fn load(&self) -> Arc<IndexedConfig> {
        self.current.load_full()
    }

    /// Puts a snapshot in force for every request that comes from now on.
    pub(crate) fn replace(&self, snapshot: Arc<ConfigSnapshot>) {
        let previous = self.current.load_full();
        self.current.store(Arc::new(IndexedConfig::new(self.gateway, snapshot, Some(&previous))));
    }
}

/// One snapshot with its indexes.
#[derive(Debug)]
pub(crate) struct IndexedConfig {
    snapshot: Arc<ConfigSnapshot>,
    tenants: HashMap<TenantId, usize>,
    keys: HashMap<KeyId, usize>,
    verifiers: HashMap<SigningKeyId, Verifier>,
    verified_tokens: Arc<VerifiedTokens>,
    aliases: BTreeMap<String, usize>,
    versions: HashMap<VersionId, usize>,
    deployments: HashMap<VersionId, Vec<usize>>,
    workers: HashMap<VersionId, Vec<WorkerId>>,
    leases: HashMap<TenantId, usize>,
    exhausted: Vec<TenantId>,
}

impl IndexedConfig {
    fn new(gateway: GatewayId, snapshot: Arc<ConfigSnapshot>, previous: Option<&Self>) -> Self {
        let resources = &snapshot.resources;
        let same_keys = previous
            .filter(|previous| previous.snapshot.resources.verification_keys == resources.verification_keys);
        Self {
            tenants: index(&resources.tenants, |tenant| tenant.id),
            keys: index(&resources.keys, |key| key.id),
            verifiers: resources
                .verification_keys
                .iter()
                .filter_map(|key| Some((key.kid, Verifier::new(key)?)))
                .collect(),
            verified_tokens: same_keys.map_or_else(Arc::default, |previous| previous.verified_tokens.clone()),
            aliases: index(&resources.aliases, |alias| alias.name.clone()).into_iter().collect(),
            versions: index(&resources.versions, |version| version.id),
            deployments: deployments_by_version(resources),
            workers: workers_by_version(resources),
            leases: leases_of(gateway, resources),
            exhausted: resources.budgets.iter().filter(|b| b.exhausted).map(|b| b.tenant).collect(),
            snapshot,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.snapshot.revision
    }

    pub(crate) fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(&id).map(|&at| &self.snapshot.resources.tenants[at])
    }

    pub(crate) fn key(&self, id: KeyId) -> Option<&Key> {
        self.keys.get(&id).map(|&at| &self.snapshot.resources.keys[at])
    }

    pub(crate) fn verifier(&self, kid: SigningKeyId) -> Option<&Verifier> {
        self.verifiers.get(&kid)
    }

    pub(crate) fn verified_tokens(&self) -> &VerifiedTokens {
        &self.verified_tokens
    }

    pub(crate) fn alias(&self, name: &str) -> Option<&Alias> {
        self.aliases.get(name).map(|&at| &self.snapshot.resources.aliases[at])
    }

    /// All aliases, by name.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = &Alias> {
        self.aliases.values().map(|&at| &self.snapshot.resources.aliases[at])
    }

    pub(crate) fn version(&self, id: VersionId) -> Option<&PinnedVersion> {
        self.versions.get(&id).map(|&at| &self.snapshot.resources.versions[at])
    }

    pub(crate) fn versions(&self) -> &[PinnedVersion] {
        &self.snapshot.resources.versions
    }

    /// The first deployment of a version; its latency targets apply.
    pub(crate) fn deployment(&self, version: VersionId) -> Option<&Deployment> {
        let first = *self.deployments.get(&version)?.first()?;
        Some(&self.snapshot.resources.deployments[first])
    }

    /// Workers of the pools that a version is deployed to.
    pub(crate) fn workers(&self, version: VersionId) -> &[WorkerId] {
        self.workers.get(&version).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn replicas(&self) -> &[Replica] {
        &self.snapshot.resources.replicas
    }

    /// This gateway's share of a tenant's limits.
    pub(crate) fn lease(&self, tenant: TenantId) -> Option<&QuotaLease> {
        self.leases.get(&tenant).map(|&at| &self.snapshot.resources.leases[at])
    }

    pub(crate) fn budget_exhausted(&self, tenant: TenantId) -> bool {
        self.exhausted.contains(&tenant)
    }
}

/// This node's own check of what is published: a type that it could not honour is refused with the reason.
pub(crate) fn validate(resource_type: ResourceType, resources: &Resources) -> Result<(), String> {
    match resource_type {
        ResourceType::VerificationKeys => {
            match resources.verification_keys.iter().find(|key| Verifier::new(key).is_none()) {
                Some(key) => Err(format!("verification key {} is not an Ed25519 public key", key.kid)),
                None => Ok(()),
            }
        }
        ResourceType::Replicas => {
            let bad = |replica: &&Replica| {
                tonic::transport::Endpoint::from_shared(replica.address.clone()).is_err()
            };
            match resources.replicas.iter().find(bad) {
                Some(replica) => Err(format!("the address of worker {} is not a URI", replica.worker)),
                None => Ok(()),
            }
        }
        ResourceType::Tenants
        | ResourceType::Keys
        | ResourceType::Aliases
        | ResourceType::Versions
        | ResourceType::Deployments
        | ResourceType::Leases
        | ResourceType::Budgets => Ok(()),
    }
}

fn index<T, K: std::hash::Hash + Eq>(items: &[T], key: impl Fn(&T) -> K) -> HashMap<K, usize> {
    items.iter().enumerate().map(|(at, item)| (key(item), at)).collect()
}

fn deployments_by_version(resources: &Resources) -> HashMap<VersionId, Vec<usize>> {
    let mut by_version: HashMap<VersionId, Vec<usize>> = HashMap::new();
    for (at, deployment) in resources.deployments.iter().enumerate() {
        by_version.entry(deployment.version).or_default().push(at);
    }
    by_version
}

fn workers_by_version(resources: &Resources) -> HashMap<VersionId, Vec<WorkerId>> {
    let mut by_version: HashMap<VersionId, Vec<WorkerId>> = HashMap::new();
    for deployment in &resources.deployments {
        let workers = by_version.entry(deployment.version).or_default();
        for replica in resources.replicas.iter().filter(|replica| replica.pool == deployment.pool) {
            if !workers.contains(&replica.worker) {
                workers.push(replica.worker);
            }
        }
    }
    by_version
}

/// A gateway has at most one lease a tenant (the snapshot's own check).
fn leases_of(gateway: GatewayId, resources: &Resources) -> HashMap<TenantId, usize> {
    let leases = resources.leases.iter().enumerate();
    leases.filter(|(_, lease)| lease.gateway == gateway).map(|(at, lease)| (lease.tenant, at)).collect()
}
