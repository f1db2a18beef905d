//! The resource types of a snapshot: what stands in each.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::overload::Overload;
use crate::ids::{
    AliasId, DeploymentId, GatewayId, InstanceId, KeyId, SigningKeyId, TenantId, VersionId, WorkerId,
};

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// Call models.
    #[serde(rename = "inference")]
    Inference,
    /// Read the tenant's usage and costs.
    #[serde(rename = "usage:read")]
    UsageRead,
    /// Make and revoke the tenant's keys.
    #[serde(rename = "keys:write")]
    KeysWrite,
    /// Everything within the tenant.
    #[serde(rename = "tenant:admin")]
    TenantAdmin,
    /// Everything on the platform.
    #[serde(rename = "platform:admin")]
    PlatformAdmin,
}

impl Scope {
    /// Every scope, in ascending power.
    pub const ALL: [Self; 5] =
        [Self::Inference, Self::UsageRead, Self::KeysWrite, Self::TenantAdmin, Self::PlatformAdmin];

    /// The scope as it stands in a token.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::UsageRead => "usage:read",
            Self::KeysWrite => "keys:write",
            Self::TenantAdmin => "tenant:admin",
            Self::PlatformAdmin => "platform:admin",
        }
    }
}

/// Upper bounds; `None` means no bound of this kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Prompt and generated tokens a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Prompt tokens a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens_per_minute: Option<u64>,
    /// Generated tokens a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_per_minute: Option<u64>,
    /// Requests a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Sequences in flight at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_sequences: Option<u64>,
    /// Generated tokens of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Prompt plus generated tokens of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context_tokens: Option<u64>,
}

impl Limits {
    /// The lower bound of each kind.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        let lower = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            tokens_per_minute: lower(self.tokens_per_minute, other.tokens_per_minute),
            input_tokens_per_minute: lower(self.input_tokens_per_minute, other.input_tokens_per_minute),
            output_tokens_per_minute: lower(self.output_tokens_per_minute, other.output_tokens_per_minute),
            requests_per_minute: lower(self.requests_per_minute, other.requests_per_minute),
            concurrent_sequences: lower(self.concurrent_sequences, other.concurrent_sequences),
            max_output_tokens: lower(self.max_output_tokens, other.max_output_tokens),
            max_context_tokens: lower(self.max_context_tokens, other.max_context_tokens),
        }
    }
}

/// Limits of single models, by the name that clients call them by. Each holds beside the limits over all models.
pub type ModelLimits = BTreeMap<String, Limits>;

/// Whether a tenant may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantState {
    /// Served.
    Active,
    /// Refused as if its keys were revoked.
    Suspended,
}

/// A tenant as the data plane sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Whether it is served.
    pub state: TenantState,
    /// Its share among active tenants.
    pub weight: u32,
    /// Its limits.
    pub limits: Limits,
    /// It agreed that a smaller model may answer when the one it asks for is overloaded.
    #[serde(default)]
    pub may_overflow: bool,
    /// Its limits on single models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model_limits: ModelLimits,
}

/// An active key. Absence from the snapshot is revocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The JWT's `jti`.
    pub id: KeyId,
    /// Whose key; the JWT's `sub` must agree.
    pub tenant: TenantId,
    /// What it may do; the JWT's `scope` cannot widen this.
    pub scopes: Vec<Scope>,
    /// Tighter limits than the tenant's.
    #[serde(default)]
    pub limits: Limits,
    /// Tighter limits than the tenant's on single models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model_limits: ModelLimits,
    /// When it ends.
    pub expires_at: DateTime<Utc>,
}

/// The public half of a signing key, as an OKP JWK (RFC 8037).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationKey {
    /// The JWT header's `kid`.
    pub kid: SigningKeyId,
    /// Ed25519 public key, base64url without padding.
    pub x: String,
    /// The `iss` that its tokens carry.
    pub issuer: String,
    /// The `aud` that its tokens carry.
    pub audience: String,
}

/// A model name that clients ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// Its id.
    pub id: AliasId,
    /// The name.
    pub name: String,
    /// Where its requests go; the weights add up to more than zero.
    pub targets: Vec<AliasTarget>,
    /// When it was made, as `/v1/models` shows it.
    pub created_at: DateTime<Utc>,
}

/// One weighted target of an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasTarget {
    /// The pinned version.
    pub version: VersionId,
    /// Its share of the requests.
    pub weight: u32,
}

/// An immutable model artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedVersion {
    /// Its id.
    pub id: VersionId,
    /// The model's name, for people.
    pub model: String,
    /// Where workers read the weights (`file:///…`).
    pub weights_uri: String,
    /// `sha256:…` of the artifact.
    pub digest: String,
    /// Storage type of most weights, e.g. `Q4_1`.
    pub dtype: String,
    /// Number of parameters.
    pub parameter_count: u64,
    /// Longest sequence, in tokens.
    pub context_limit: u32,
    /// `sha256:…` of the model text that gateways tokenise with.
    pub tokenizer_digest: String,
}

/// Latency targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slo {
    /// Time to first token, milliseconds.
    pub ttft_ms: u64,
    /// Gap between tokens, milliseconds.
    pub itl_ms: u64,
}

impl Default for Slo {
    /// DESIGN.md section 6: 200 ms and 100 ms.
    fn default() -> Self {
        Self { ttft_ms: 200, itl_ms: 100 }
    }
}

/// A version that a pool of workers serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// Its id.
    pub id: DeploymentId,
    /// What is served.
    pub version: VersionId,
    /// The workers that serve it: those started with this pool name.
    pub pool: String,
    /// Replicas wanted.
    pub replicas: u32,
    /// Latency targets.
    pub slo: Slo,
    /// What happens to requests that would miss the target for the first token.
    #[serde(default)]
    pub overload: Overload,
}

/// A worker that gateways may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// The worker.
    pub worker: WorkerId,
    /// Its current run.
    pub instance: InstanceId,
    /// `http://host:port` of its RPC.
    pub address: String,
    /// The pool it serves.
    pub pool: String,
}

/// One gateway's share of one tenant's limits. A gateway without a lease for a tenant has no share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaLease {
    /// Whose limits.
    pub tenant: TenantId,
    /// Who holds the share.
    pub gateway: GatewayId,
    /// Fences older leases of the same tenant.
    pub epoch: u64,
    /// The share, in the limit's own units; only the per-minute and concurrency bounds are shared out.
    pub share: Limits,
    /// The share of the limits on single models, likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model_shares: ModelLimits,
}

/// Whether a tenant's money is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetState {
    /// Whose budget.
    pub tenant: TenantId,
    /// No request is admitted while set.
    pub exhausted: bool,
}
