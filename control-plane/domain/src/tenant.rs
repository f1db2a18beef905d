//! Tenant: who is limited, billed and isolated. Owns its key records; never sees a token.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::{Limits, ModelLimits, Scope, TenantState};
use weir_schemas::ids::{KeyId, TenantId};

use crate::aggregate::{Aggregate, existing, vacant};
use crate::key::{HeldKey, KeyRecord};
use crate::refusal::{Refusal, Rule};
use crate::validate;

/// What a tenant's key can carry. Platform power is never a tenant's.
pub const TENANT_KEY_SCOPES: [Scope; 4] =
    [Scope::Inference, Scope::UsageRead, Scope::KeysWrite, Scope::TenantAdmin];
/// Keys of one tenant in force at once: the snapshot, which every node holds whole, grows with each.
pub const ACTIVE_KEYS_MAX: u64 = 1_000;
/// Shares are relative; this is far above any useful ratio.
const WEIGHT_MAX: u64 = 10_000;

/// The state of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// For people; unique.
    pub name: String,
    /// Whether it is served.
    pub state: TenantState,
    /// Its share among active tenants.
    pub weight: u32,
    /// Its limits.
    pub limits: Limits,
    /// Its limits on single models.
    pub model_limits: ModelLimits,
    /// Whether a smaller model may answer when the one that is asked for is overloaded.
    pub may_overflow: bool,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Every key it ever had.
    pub keys: BTreeMap<KeyId, HeldKey>,
}

/// What happened to a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum TenantEvent {
    /// It was made; it is active.
    #[serde(rename = "tenant.created.v1")]
    Created {
        /// Its id.
        id: TenantId,
        /// Its name.
        name: String,
        /// Its share.
        weight: u32,
        /// Its limits.
        limits: Limits,
        /// Its limits on single models.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        model_limits: ModelLimits,
        /// When.
        created_at: DateTime<Utc>,
    },
    /// It got another name.
    #[serde(rename = "tenant.renamed.v1")]
    Renamed {
        /// The new name.
        name: String,
    },
    /// It got another share.
    #[serde(rename = "tenant.weight_set.v1")]
    WeightSet {
        /// The new share.
        weight: u32,
    },
    /// It got other limits, these and no others.
    #[serde(rename = "tenant.limits_set.v1")]
    LimitsSet {
        /// The new limits.
        limits: Limits,
    },
    /// It got other limits on single models, these and no others.
    #[serde(rename = "tenant.model_limits_set.v1")]
    ModelLimitsSet {
        /// The new limits.
        model_limits: ModelLimits,
    },
    /// It agreed, or no longer agrees, that a smaller model may answer when the one it asks for is overloaded.
    #[serde(rename = "tenant.may_overflow_set.v1")]
    MayOverflowSet {
        /// Whether it agrees.
        may_overflow: bool,
    },
    /// It is no longer served, or served again.
    #[serde(rename = "tenant.state_set.v1")]
    StateSet {
        /// The new state.
        state: TenantState,
    },
    /// A key was issued.
    #[serde(rename = "tenant.key_created.v1")]
    KeyCreated {
        /// Its record.
        key: KeyRecord,
    },
    /// A key was revoked.
    #[serde(rename = "tenant.key_revoked.v1")]
    KeyRevoked {
        /// Its id.
        key: KeyId,
        /// When.
        revoked_at: DateTime<Utc>,
    },
}

/// What may be asked of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub enum TenantCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: TenantId,
        /// Its name.
        name: String,
        /// Its share.
        weight: u32,
        /// Its limits.
        limits: Limits,
        /// Its limits on single models.
        model_limits: ModelLimits,
        /// The time.
        now: DateTime<Utc>,
    },
    /// Change what is given.
    Update {
        /// The new name.
        name: Option<String>,
        /// The new state.
        state: Option<TenantState>,
        /// The new share.
        weight: Option<u32>,
        /// The new limits, replacing all of the old.
        limits: Option<Limits>,
        /// The new limits on single models, replacing all of the old.
        model_limits: Option<ModelLimits>,
        /// Whether a smaller model may answer when the one that is asked for is overloaded.
        may_overflow: Option<bool>,
    },
    /// Issue a key.
    CreateKey {
        /// Its record, made at `created_at`.
        key: KeyRecord,
    },
    /// Revoke a key; doing it twice changes nothing.
    RevokeKey {
        /// Its id.
        key: KeyId,
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for Tenant {
    type Id = TenantId;
    type Command = TenantCommand;
    type Event = TenantEvent;
    const NOUN: &'static str = "tenant";

    fn decide(current: Option<&Self>, command: TenantCommand) -> Result<Vec<TenantEvent>, Refusal> {
        match command {
            TenantCommand::Create { id, name, weight, limits, model_limits, now } => {
                vacant(current)?;
                validate::text("name", &name)?;
                check_weight(weight)?;
                validate::limits(&limits)?;
                validate::model_limits(&model_limits)?;
                Ok(vec![TenantEvent::Created { id, name, weight, limits, model_limits, created_at: now }])
            }
            TenantCommand::Update { name, state, weight, limits, model_limits, may_overflow } => {
                existing(current)?.update(name, state, weight, limits, model_limits, may_overflow)
            }
            TenantCommand::CreateKey { key } => existing(current)?.create_key(key),
            TenantCommand::RevokeKey { key, now } => existing(current)?.revoke_key(key, now),
        }
    }

    fn evolve(current: Option<Self>, event: &TenantEvent) -> Option<Self> {
        if let TenantEvent::Created { id, name, weight, limits, model_limits, created_at } = event {
            return Some(Self {
                id: *id,
                name: name.clone(),
                state: TenantState::Active,
                weight: *weight,
                limits: *limits,
                model_limits: model_limits.clone(),
                may_overflow: false,
                created_at: *created_at,
                keys: BTreeMap::new(),
            });
        }
        let mut tenant = current?;
        match event {
            TenantEvent::Created { .. } => {}
            TenantEvent::Renamed { name } => tenant.name.clone_from(name),
            TenantEvent::WeightSet { weight } => tenant.weight = *weight,
            TenantEvent::LimitsSet { limits } => tenant.limits = *limits,
            TenantEvent::ModelLimitsSet { model_limits } => tenant.model_limits.clone_from(model_limits),
            TenantEvent::MayOverflowSet { may_overflow } => tenant.may_overflow = *may_overflow,
            TenantEvent::StateSet { state } => tenant.state = *state,
            TenantEvent::KeyCreated { key } => {
                tenant.keys.insert(key.id, HeldKey::new(key.clone()));
            }
            TenantEvent::KeyRevoked { key, revoked_at } => {
                if let Some(held) = tenant.keys.get_mut(key) {
                    held.revoked_at = Some(*revoked_at);
                }
            }
        }
        Some(tenant)
    }
}

impl Tenant {
    fn update(
        &self,
        name: Option<String>,
        state: Option<TenantState>,
        weight: Option<u32>,
        limits: Option<Limits>,
        model_limits: Option<ModelLimits>,
        may_overflow: Option<bool>,
    ) -> Result<Vec<TenantEvent>, Refusal> {
        let mut events = Vec::new();
        if let Some(name) = name.filter(|name| *name != self.name) {
            validate::text("name", &name)?;
            events.push(TenantEvent::Renamed { name });
        }
        if let Some(state) = state.filter(|state| *state != self.state) {
            events.push(TenantEvent::StateSet { state });
        }
        if let Some(weight) = weight.filter(|weight| *weight != self.weight) {
            check_weight(weight)?;
            events.push(TenantEvent::WeightSet { weight });
        }
        if let Some(limits) = limits.filter(|limits| *limits != self.limits) {
            validate::limits(&limits)?;
            events.push(TenantEvent::LimitsSet { limits });
        }
        if let Some(model_limits) = model_limits.filter(|limits| *limits != self.model_limits) {
            validate::model_limits(&model_limits)?;
            events.push(TenantEvent::ModelLimitsSet { model_limits });
        }
        if let Some(may_overflow) = may_overflow.filter(|agrees| *agrees != self.may_overflow) {
            events.push(TenantEvent::MayOverflowSet { may_overflow });
        }
        Ok(events)
    }

    fn create_key(&self, key: KeyRecord) -> Result<Vec<TenantEvent>, Refusal> {
        key.check(&TENANT_KEY_SCOPES)?;
        if self.keys.contains_key(&key.id) {
            return Err(Refusal::Exists { noun: "key" });
        }
        let active = self.keys.values().filter(|held| held.is_active(key.created_at)).count() as u64;
        validate::ensure(
            active < ACTIVE_KEYS_MAX,
            "the number of active keys",
            Rule::Range { min: 0, max: ACTIVE_KEYS_MAX },
        )?;
        Ok(vec![TenantEvent::KeyCreated { key }])
    }

    fn revoke_key(&self, key: KeyId, now: DateTime<Utc>) -> Result<Vec<TenantEvent>, Refusal> {
        let held = self.keys.get(&key).ok_or(Refusal::Absent { noun: "key" })?;
        Ok(match held.revoked_at {
            Some(_) => vec![],
            None => vec![TenantEvent::KeyRevoked { key, revoked_at: now }],
        })
    }
}

fn check_weight(weight: u32) -> Result<(), Refusal> {
    validate::range("weight", weight.into(), 1, WEIGHT_MAX)
}

#[cfg(test)]
mod tests;
