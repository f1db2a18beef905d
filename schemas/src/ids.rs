//! Typed, prefixed, time-ordered ids in TypeID form: a prefix naming the kind, `_`, and a UUIDv7 (RFC 9562) as 26
//! characters of lowercase Crockford base32. One Rust type each, so that a key id cannot be passed as a tenant id.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::{NoContext, Timestamp, Uuid};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const SUFFIX_LEN: usize = 26;

/// Why a string is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Another kind of id, or no id at all.
    #[error("expected an id that begins with '{expected}_'")]
    Prefix {
        /// The prefix of the expected kind.
        expected: &'static str,
    },
    /// The part after the prefix is not 26 base32 characters of 128 bits.
    #[error("the part after '{prefix}_' must be {SUFFIX_LEN} characters of lowercase Crockford base32")]
    Suffix {
        /// The prefix of the expected kind.
        prefix: &'static str,
    },
}

fn encode(uuid: Uuid) -> String {
    let mut bits = uuid.as_u128();
    let mut out = [0u8; SUFFIX_LEN];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(bits & 31) as usize];
        bits >>= 5;
    }
    out.iter().map(|&byte| char::from(byte)).collect()
}

fn decode(prefix: &'static str, suffix: &str) -> Result<Uuid, IdError> {
    let bad = || IdError::Suffix { prefix };
    // 26 × 5 = 130 bits: the first character carries only three.
    if suffix.len() != SUFFIX_LEN || suffix.as_bytes()[0] > b'7' {
        return Err(bad());
    }
    let mut bits = 0u128;
    for byte in suffix.bytes() {
        let digit = ALPHABET.iter().position(|&letter| letter == byte).ok_or_else(bad)?;
        bits = (bits << 5) | digit as u128;
    }
    Ok(Uuid::from_u128(bits))
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// What every id of this kind begins with, before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// A fresh id, ordered by `now` (millisecond resolution), random below that.
            pub fn new(now: DateTime<Utc>) -> Self {
                let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
                Self(Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, now.timestamp_subsec_nanos())))
            }

            /// The id with exactly these 128 bits.
            pub const fn from_u128(bits: u128) -> Self {
                Self(Uuid::from_u128(bits))
            }

            /// The 128 bits without the kind.
            pub const fn as_u128(&self) -> u128 {
                self.0.as_u128()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", $prefix, encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let suffix = text
                    .strip_prefix(concat!($prefix, "_"))
                    .ok_or(IdError::Prefix { expected: $prefix })?;
                decode($prefix, suffix).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": concat!("^", $prefix, "_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
                })
            }
        }
    };
}

typed_id!(
    /// A tenant: who is limited, billed and isolated.
    TenantId, "ten");
typed_id!(
    /// A tenant's API key (the JWT's `jti`); only the id is ever stored.
    KeyId, "key");
typed_id!(
    /// A model: the family that pinned versions belong to.
    ModelId, "mdl");
typed_id!(
    /// A pinned model version: an immutable artifact.
    VersionId, "ver");
typed_id!(
    /// An alias: the name that clients ask for.
    AliasId, "als");
typed_id!(
    /// A deployment: a version served by a pool of workers.
    DeploymentId, "dep");
typed_id!(
    /// A price book.
    PriceBookId, "prb");
typed_id!(
    /// A signing key; the JWT header's `kid`.
    SigningKeyId, "sig");
typed_id!(
    /// A request, at the gateway that received it.
    RequestId, "req");
typed_id!(
    /// A gateway, stable over restarts.
    GatewayId, "gtw");
typed_id!(
    /// A worker, stable over restarts.
    WorkerId, "wrk");
typed_id!(
    /// One run of a process, new at each start.
    InstanceId, "ins");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_orders_by_time() {
        let at = |millis| DateTime::from_timestamp_millis(millis).unwrap();
        let (early, late) = (TenantId::new(at(1_000)), TenantId::new(at(2_000)));
        assert!(early < late && early.to_string() < late.to_string());
        assert_eq!(early.to_string().parse(), Ok(early));
        assert_eq!(serde_json::from_str::<TenantId>(&serde_json::to_string(&late).unwrap()).unwrap(), late);
    }

    #[test]
    fn known_form() {
        // 0x018f… in Crockford base32, from the TypeID specification's alphabet, most significant bit first.
        assert_eq!(KeyId::from_u128(1).to_string(), "key_00000000000000000000000001");
        assert_eq!(KeyId::from_u128(u128::MAX).to_string(), "key_7zzzzzzzzzzzzzzzzzzzzzzzzz");
    }

    #[test]
    fn refuses_other_kinds_and_malformed_suffixes() {
        let key = KeyId::from_u128(7).to_string();
        assert_eq!(key.parse::<TenantId>(), Err(IdError::Prefix { expected: "ten" }));
        for bad in [
            "key_",
            "key_8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "key_0000000000000000000000000I",
            "key_é0000000000000000000000000",
        ] {
            assert_eq!(bad.parse::<KeyId>(), Err(IdError::Suffix { prefix: "key" }), "{bad}");
        }
    }
}
