//! The platform itself: the allow-list of operators' keys. One stream, `platform`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::Scope;
use weir_schemas::ids::KeyId;

use crate::aggregate::Aggregate;
use crate::key::{HeldKey, KeyRecord};
use crate::refusal::{Refusal, Rule, invalid};

/// The only instance's name, and the `sub` of operators' tokens.
pub const PLATFORM: &str = "platform";
/// Operators' keys in force at once: a handful of people and machines.
pub const ACTIVE_KEYS_MAX: u64 = 100;

/// Names the one platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlatformId;

impl fmt::Display for PlatformId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PLATFORM)
    }
}

impl FromStr for PlatformId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text == PLATFORM { Ok(Self) } else { Err(Refusal::Absent { noun: Platform::NOUN }) }
    }
}

/// The state of the platform; it exists from the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Platform {
    /// Every operator's key there ever was.
    pub keys: BTreeMap<KeyId, HeldKey>,
}

/// What happened to the platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum PlatformEvent {
    /// An operator's key was issued.
    #[serde(rename = "platform.key_created.v1")]
    KeyCreated {
        /// Its record.
        key: Box<KeyRecord>,
    },
    /// An operator's key was revoked.
    #[serde(rename = "platform.key_revoked.v1")]
    KeyRevoked {
        /// Its id.
        key: KeyId,
        /// When.
        revoked_at: DateTime<Utc>,
    },
}

/// What may be asked of the platform.
#[derive(Debug, Clone, PartialEq)]
pub enum PlatformCommand {
    /// Issue an operator's key.
    CreateKey {
        /// Its record.
        key: Box<KeyRecord>,
    },
    /// Revoke an operator's key; doing it twice changes nothing. The last one in force stays.
    RevokeKey {
        /// Its id.
        key: KeyId,
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for Platform {
    type Id = PlatformId;
    type Command = PlatformCommand;
    type Event = PlatformEvent;
    const NOUN: &'static str = "platform";

    fn decide(current: Option<&Self>, command: PlatformCommand) -> Result<Vec<PlatformEvent>, Refusal> {
        let start = Self::default();
        let platform = current.unwrap_or(&start);
        let active = |now| platform.keys.values().filter(|held| held.is_active(now)).count() as u64;
        match command {
            PlatformCommand::CreateKey { key } => {
                key.check(&[Scope::PlatformAdmin])?;
                if platform.keys.contains_key(&key.id) {
                    return Err(Refusal::Exists { noun: "key" });
                }
                if active(key.created_at) >= ACTIVE_KEYS_MAX {
                    let rule = Rule::Range { min: 0, max: ACTIVE_KEYS_MAX };
                    return Err(invalid("the number of active keys", rule));
                }
                Ok(vec![PlatformEvent::KeyCreated { key }])
            }
            PlatformCommand::RevokeKey { key, now } => {
                let held = platform.keys.get(&key).ok_or(Refusal::Absent { noun: "key" })?;
                if held.revoked_at.is_some() {
                    return Ok(vec![]);
                }
                if held.is_active(now) && active(now) == 1 {
                    return Err(Refusal::State {
                        noun: "key",
                        state: "the last that can administer the platform",
                    });
                }
                Ok(vec![PlatformEvent::KeyRevoked { key, revoked_at: now }])
            }
        }
    }

    fn evolve(current: Option<Self>, event: &PlatformEvent) -> Option<Self> {
        let mut platform = current.unwrap_or_default();
        match event {
            PlatformEvent::KeyCreated { key } => {
                platform.keys.insert(key.id, HeldKey::new((**key).clone()));
            }
            PlatformEvent::KeyRevoked { key, revoked_at } => {
                if let Some(held) = platform.keys.get_mut(key) {
                    held.revoked_at = Some(*revoked_at);
                }
            }
        }
        Some(platform)
    }
}

#[cfg(test)]
mod tests {
    use weir_schemas::config_snapshot::{Limits, ModelLimits};
    use weir_schemas::ids::SigningKeyId;

    use super::*;
    use crate::aggregate::check;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn key(n: u128, scope: Scope) -> Box<KeyRecord> {
        Box::new(KeyRecord {
            id: KeyId::from_u128(n),
            name: "operator".into(),
            scopes: vec![scope],
            limits: Limits::default(),
            model_limits: ModelLimits::new(),
            signing_key: SigningKeyId::from_u128(9),
            created_at: at(0),
            expires_at: at(100),
        })
    }

    #[test]
    fn operators_keys_carry_platform_power_only() {
        let issue = |scope| PlatformCommand::CreateKey { key: key(1, scope) };
        let issued = PlatformEvent::KeyCreated { key: key(1, Scope::PlatformAdmin) };
        check::<Platform>(&[], issue(Scope::PlatformAdmin), Ok(vec![issued]));
        check::<Platform>(&[], issue(Scope::Inference), Err(invalid("scopes", Rule::Scope)));
    }

    #[test]
    fn the_last_key_in_force_stays() {
        let issued = |n| PlatformEvent::KeyCreated { key: key(n, Scope::PlatformAdmin) };
        let revoke = |n| PlatformCommand::RevokeKey { key: KeyId::from_u128(n), now: at(5) };
        let revoked = |n| PlatformEvent::KeyRevoked { key: KeyId::from_u128(n), revoked_at: at(5) };
        check::<Platform>(&[issued(1), issued(2)], revoke(1), Ok(vec![revoked(1)]));
        check::<Platform>(&[issued(1), issued(2), revoked(1)], revoke(1), Ok(vec![]));
        let last = Refusal::State { noun: "key", state: "the last that can administer the platform" };
        check::<Platform>(&[issued(1), issued(2), revoked(1)], revoke(2), Err(last));
        check::<Platform>(&[issued(1)], revoke(7), Err(Refusal::Absent { noun: "key" }));
    }
}
