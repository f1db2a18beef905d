//! SigningKey: the public part of a key that signs tokens, and its state. The private part is never here.
//!
//! Active signs and verifies; retiring only verifies, so that tokens outlive a rotation; retired does neither.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::is_ed25519_key;
use weir_schemas::ids::SigningKeyId;

use crate::aggregate::{Aggregate, existing, vacant};
use crate::refusal::{Refusal, Rule};
use crate::validate::ensure;

/// What a signing key is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SigningKeyState {
    /// Signs new tokens and verifies.
    Active,
    /// Only verifies.
    Retiring,
    /// Neither; its tokens are no longer good.
    Retired,
}

impl SigningKeyState {
    /// The state's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Retiring => "retiring",
            Self::Retired => "retired",
        }
    }
}

/// The state of a signing key.
#[derive(Debug, Clone, PartialEq)]
pub struct SigningKey {
    /// Its id, the `kid`.
    pub id: SigningKeyId,
    /// Ed25519 public key, base64url without padding.
    pub public_key: String,
    /// What it is used for.
    pub state: SigningKeyState,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// What happened to a signing key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum SigningKeyEvent {
    /// It was made and signs from now on.
    #[serde(rename = "signing_key.created.v1")]
    Created {
        /// Its id.
        id: SigningKeyId,
        /// Ed25519 public key, base64url without padding.
        public_key: String,
        /// When.
        created_at: DateTime<Utc>,
    },
    /// It signs no more.
    #[serde(rename = "signing_key.retiring.v1")]
    Retiring {},
    /// It verifies no more.
    #[serde(rename = "signing_key.retired.v1")]
    Retired {},
}

/// What may be asked of a signing key.
#[derive(Debug, Clone, PartialEq)]
pub enum SigningKeyCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: SigningKeyId,
        /// Ed25519 public key, base64url without padding.
        public_key: String,
        /// The time.
        now: DateTime<Utc>,
    },
    /// Stop signing with it; another key takes over.
    BeginRetiring,
    /// Stop verifying with it.
    Retire {
        /// When the last good token signed with it expires.
        tokens_until: Option<DateTime<Utc>>,
        /// Even though such tokens exist (a leaked key).
        force: bool,
    },
}

impl Aggregate for SigningKey {
    type Id = SigningKeyId;
    type Command = SigningKeyCommand;
    type Event = SigningKeyEvent;
    const NOUN: &'static str = "signing key";

    fn decide(current: Option<&Self>, command: SigningKeyCommand) -> Result<Vec<SigningKeyEvent>, Refusal> {
        match command {
            SigningKeyCommand::Create { id, public_key, now } => {
                vacant(current)?;
                ensure(is_ed25519_key(&public_key), "public_key", Rule::PublicKey)?;
                Ok(vec![SigningKeyEvent::Created { id, public_key, created_at: now }])
            }
            SigningKeyCommand::BeginRetiring => Ok(match existing(current)?.state {
                SigningKeyState::Active => vec![SigningKeyEvent::Retiring {}],
                SigningKeyState::Retiring | SigningKeyState::Retired => vec![],
            }),
            SigningKeyCommand::Retire { tokens_until, force } => match existing(current)?.state {
                SigningKeyState::Active => {
                    Err(Refusal::State { noun: Self::NOUN, state: "active; rotate first" })
                }
                SigningKeyState::Retired => Ok(vec![]),
                SigningKeyState::Retiring => match tokens_until {
                    Some(until) if !force => Err(Refusal::SigningKeyInUse { until }),
                    Some(_) | None => Ok(vec![SigningKeyEvent::Retired {}]),
                },
            },
        }
    }

    fn evolve(current: Option<Self>, event: &SigningKeyEvent) -> Option<Self> {
        match event {
            SigningKeyEvent::Created { id, public_key, created_at } => Some(Self {
                id: *id,
                public_key: public_key.clone(),
                state: SigningKeyState::Active,
                created_at: *created_at,
            }),
            SigningKeyEvent::Retiring {} => {
                current.map(|key| Self { state: SigningKeyState::Retiring, ..key })
            }
            SigningKeyEvent::Retired {} => current.map(|key| Self { state: SigningKeyState::Retired, ..key }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;
    use crate::refusal::invalid;

    fn created() -> SigningKeyEvent {
        SigningKeyEvent::Created {
            id: SigningKeyId::from_u128(1),
            public_key: "a".repeat(43),
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    fn retire(until: Option<i64>, force: bool) -> SigningKeyCommand {
        let tokens_until = until.map(|seconds| DateTime::from_timestamp(seconds, 0).unwrap());
        SigningKeyCommand::Retire { tokens_until, force }
    }

    #[test]
    fn rotation_overlaps_and_ends_when_the_last_token_has() {
        let retiring = SigningKeyEvent::Retiring {};
        check::<SigningKey>(&[created()], SigningKeyCommand::BeginRetiring, Ok(vec![retiring.clone()]));
        let given = [created(), retiring];
        let in_use = Refusal::SigningKeyInUse { until: DateTime::from_timestamp(9, 0).unwrap() };
        check::<SigningKey>(&given, retire(Some(9), false), Err(in_use));
        check::<SigningKey>(&given, retire(Some(9), true), Ok(vec![SigningKeyEvent::Retired {}]));
        check::<SigningKey>(&given, retire(None, false), Ok(vec![SigningKeyEvent::Retired {}]));
    }

    #[test]
    fn the_active_key_cannot_be_retired_and_a_public_key_must_look_like_one() {
        let state = Refusal::State { noun: "signing key", state: "active; rotate first" };
        check::<SigningKey>(&[created()], retire(None, true), Err(state));
        let create = SigningKeyCommand::Create {
            id: SigningKeyId::from_u128(1),
            public_key: "short".into(),
            now: DateTime::UNIX_EPOCH,
        };
        check::<SigningKey>(&[], create, Err(invalid("public_key", Rule::PublicKey)));
    }
}
