//! A key record: what is known of an issued token, never the token. Held by [`crate::tenant`] for tenants' keys
//! and by [`crate::platform`] for operators'.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::{Limits, ModelLimits, Scope};
use weir_schemas::ids::{KeyId, SigningKeyId};

use crate::refusal::{Refusal, Rule};
use crate::validate::{self, ensure};

/// Longest life of a key: long enough for an installation's own, short enough that none is for ever.
pub const KEY_DAYS_MAX: i64 = 3_650;

/// What an issued token stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The token's `jti`.
    pub id: KeyId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Tighter limits than its tenant's.
    #[serde(default)]
    pub limits: Limits,
    /// Tighter limits than its tenant's on single models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub model_limits: ModelLimits,
    /// The key that signed it: its `kid`.
    pub signing_key: SigningKeyId,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it ends.
    pub expires_at: DateTime<Utc>,
}

/// A key record and whether it was revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    /// The record.
    pub record: KeyRecord,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

impl HeldKey {
    pub(crate) const fn new(record: KeyRecord) -> Self {
        Self { record, revoked_at: None }
    }

    /// Whether a token with this id is good at `now`.
    pub fn is_active(&self, now: DateTime<Utc>) -> bool {
        self.revoked_at.is_none() && now < self.record.expires_at
    }
}

impl KeyRecord {
    /// Checks the record itself; `allowed` are the scopes that this kind of key can carry.
    pub(crate) fn check(&self, allowed: &[Scope]) -> Result<(), Refusal> {
        validate::text("name", &self.name)?;
        let distinct = self.scopes.iter().enumerate().all(|(i, scope)| !self.scopes[..i].contains(scope));
        let max = allowed.len();
        ensure(distinct && !self.scopes.is_empty(), "scopes", Rule::Distinct { max })?;
        ensure(self.scopes.iter().all(|scope| allowed.contains(scope)), "scopes", Rule::Scope)?;
        validate::limits(&self.limits)?;
        validate::model_limits(&self.model_limits)?;
        let latest = self.created_at + Duration::days(KEY_DAYS_MAX);
        let alive = self.expires_at > self.created_at && self.expires_at <= latest;
        ensure(alive, "expires_at", Rule::Expiry { max_days: KEY_DAYS_MAX })
    }
}
