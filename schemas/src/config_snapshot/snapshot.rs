//! The snapshot as a whole: revision, the resource types one by one, their digests and their checks.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::form::{is_ed25519_key, is_http_address};
use super::resources::{
    Alias, BudgetState, Deployment, Key, PinnedVersion, QuotaLease, Replica, Tenant, VerificationKey,
};

/// Orders configs: a new epoch after a restore of the database, and the position of the last event included.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Revision {
    /// Grows when the database was restored.
    pub epoch: u64,
    /// Position of the last event included.
    pub position: u64,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.position)
    }
}

/// Why a published resource type cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// The type's name is not one this node knows.
    #[error("unknown resource type '{name}'")]
    UnknownType {
        /// The name received.
        name: String,
    },
    /// The bytes do not have the stated digest.
    #[error("digest mismatch: announced {announced}, received {received}")]
    Digest {
        /// What the publisher announced.
        announced: String,
        /// What the received bytes have.
        received: String,
    },
    /// The bytes are not this type's JSON.
    #[error("cannot be parsed: {reason}")]
    Parse {
        /// The parser's words.
        reason: String,
    },
    /// Parsed, but inconsistent.
    #[error("{reason}")]
    Invalid {
        /// What is inconsistent.
        reason: String,
    },
}

macro_rules! resource_types {
    ($($(#[$doc:meta])* $variant:ident, $field:ident, $item:ty;)*) => {
        /// What is published, applied and refused as one unit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ResourceType { $($(#[$doc])* $variant,)* }

        impl ResourceType {
            /// Every type, in publishing order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field)),* }
            }

            /// The type with this wire name.
            pub fn from_name(name: &str) -> Result<Self, ResourceError> {
                match name {
                    $(stringify!($field) => Ok(Self::$variant),)*
                    _ => Err(ResourceError::UnknownType { name: name.chars().take(64).collect() }),
                }
            }
        }

        /// All resource types of one snapshot.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Resources { $($(#[$doc])* #[serde(default)] pub $field: Vec<$item>,)* }

        impl Resources {
            /// The whole of one type as it is published: JSON, items in the publisher's order.
            pub fn to_json(&self, resource_type: ResourceType) -> Vec<u8> {
                match resource_type {
                    $(ResourceType::$variant => serde_json::to_vec(&self.$field),)*
                }
                .expect("plain data with string keys always serialises")
            }

            /// Replaces one type by what `json` holds, after [`Resources::check`]; on an error nothing changes.
            pub fn apply(&mut self, resource_type: ResourceType, json: &[u8]) -> Result<(), ResourceError> {
                match resource_type {
                    $(ResourceType::$variant => {
                        let mut candidate = Self { $field: parse(json)?, ..Self::default() };
                        candidate.check(resource_type)?;
                        self.$field = std::mem::take(&mut candidate.$field);
                    })*
                }
                Ok(())
            }
        }
    };
}

resource_types! {
    /// Who may be served, and its limits.
    Tenants, tenants, Tenant;
    /// The allow-list of keys.
    Keys, keys, Key;
    /// Public keys that tokens are verified with.
    VerificationKeys, verification_keys, VerificationKey;
    /// Names that clients ask for.
    Aliases, aliases, Alias;
    /// Immutable artifacts.
    Versions, versions, PinnedVersion;
    /// What is served where.
    Deployments, deployments, Deployment;
    /// Workers and their addresses.
    Replicas, replicas, Replica;
    /// Shares of limits.
    Leases, leases, QuotaLease;
    /// Spent budgets.
    Budgets, budgets, BudgetState;
}

impl Resources {
    /// Checks one type by itself: ids unique, names unique, weights usable. A type is judged alone so that a bad
    /// one never holds back another (a revocation, say).
    pub fn check(&self, resource_type: ResourceType) -> Result<(), ResourceError> {
        match resource_type {
            ResourceType::Tenants => {
                unique("tenant", self.tenants.iter().map(|tenant| tenant.id))?;
                require(self.tenants.iter().all(|tenant| tenant.weight > 0), "a tenant's weight is zero")
            }
            ResourceType::Keys => unique("key", self.keys.iter().map(|key| key.id)),
            ResourceType::VerificationKeys => {
                unique("kid", self.verification_keys.iter().map(|key| key.kid))?;
                let usable = self.verification_keys.iter().all(|key| is_ed25519_key(&key.x));
                require(usable, "a verification key is not an Ed25519 public key")
            }
            ResourceType::Aliases => {
                unique("alias name", self.aliases.iter().map(|alias| &alias.name))?;
                let routable = |alias: &Alias| alias.targets.iter().any(|target| target.weight > 0);
                require(self.aliases.iter().all(routable), "an alias has no target of positive weight")
            }
            ResourceType::Versions => {
                unique("version", self.versions.iter().map(|version| version.id))?;
                require(
                    self.versions.iter().all(|version| version.context_limit > 0),
                    "a version's context limit is zero",
                )
            }
            ResourceType::Deployments => unique("deployment", self.deployments.iter().map(|d| d.id)),
            ResourceType::Replicas => {
                unique("worker", self.replicas.iter().map(|replica| replica.worker))?;
                let reachable = self.replicas.iter().all(|replica| is_http_address(&replica.address));
                require(reachable, "a worker's address is not of the form http://host:port")
            }
            ResourceType::Leases => {
                unique("lease", self.leases.iter().map(|lease| (lease.tenant, lease.gateway)))
            }
            ResourceType::Budgets => unique("budget", self.budgets.iter().map(|budget| budget.tenant)),
        }
    }
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<Vec<T>, ResourceError> {
    serde_json::from_slice(json).map_err(|error| ResourceError::Parse { reason: error.to_string() })
}

fn unique<T: Eq + Hash>(what: &str, mut items: impl Iterator<Item = T>) -> Result<(), ResourceError> {
    let mut seen = HashSet::new();
    require(items.all(|item| seen.insert(item)), &format!("the same {what} stands twice"))
}

fn require(holds: bool, reason: &str) -> Result<(), ResourceError> {
    if holds { Ok(()) } else { Err(ResourceError::Invalid { reason: reason.to_owned() }) }
}

/// `sha256:…` of the bytes, as every digest in Weir is written.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Everything a node needs to decide, at one revision. Never changed; a new one replaces it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigSnapshot {
    /// What it includes.
    pub revision: Revision,
    /// Its content.
    pub resources: Resources,
}

impl ConfigSnapshot {
    /// `sha256:…` over every type's digest, in [`ResourceType::ALL`] order.
    pub fn digest(&self) -> String {
        let lines: Vec<String> = ResourceType::ALL
            .iter()
            .map(|&kind| format!("{} {}\n", kind.as_str(), digest(&self.resources.to_json(kind))))
            .collect();
        digest(lines.concat().as_bytes())
    }
}
