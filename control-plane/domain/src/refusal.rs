//! Why a command is refused. Every text is safe to show to whoever sent the command.

use chrono::{DateTime, Utc};
use weir_schemas::error_class::ErrorClass;

/// A refused command; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such aggregate.
    #[error("no such {noun}")]
    Absent {
        /// What was looked for.
        noun: &'static str,
    },
    /// It exists already.
    #[error("this {noun} exists already")]
    Exists {
        /// What exists.
        noun: &'static str,
    },
    /// A value cannot be accepted.
    #[error("{field} {rule}")]
    Invalid {
        /// Which field of the command.
        field: &'static str,
        /// The rule that it must obey, completing the sentence that begins with the field.
        rule: Rule,
    },
    /// The aggregate is in a state that does not allow this.
    #[error("this {noun} is {state}")]
    State {
        /// Which aggregate.
        noun: &'static str,
        /// Its state.
        state: &'static str,
    },
    /// Already priced requests would change.
    #[error(
        "effective_from may not lie before now ({now}): this version has a price, and what was charged stands"
    )]
    RetroactivePrice {
        /// When the command was given.
        now: DateTime<Utc>,
    },
    /// Tokens signed with the key are still good.
    #[error("tokens signed with this key are good until {until}; revoke them first, or force")]
    SigningKeyInUse {
        /// When the last of them expires.
        until: DateTime<Utc>,
    },
}

/// A rule on one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// Length in characters, printable, no surrounding white space.
    #[error("must be 1 to {max} printable characters without surrounding white space")]
    Text {
        /// Most characters.
        max: usize,
    },
    /// A name that stands in URLs and in requests.
    #[error("must be 1 to {max} of the characters A-Z a-z 0-9 . _ : / -, the first a letter or digit")]
    Name {
        /// Most characters.
        max: usize,
    },
    /// A number in a range.
    #[error("must be {min} to {max}")]
    Range {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A SHA-256 digest.
    #[error("must be sha256: and 64 hexadecimal digits")]
    Digest,
    /// A location that workers can read.
    #[error("must be a file:/// URI")]
    FileUri,
    /// A three-letter currency code.
    #[error("must be an ISO 4217 code of three capital letters")]
    Currency,
    /// An amount of money per million tokens.
    #[error("must be 0 to 1000000000 with at most 12 decimal places")]
    Price,
    /// A non-empty list without repetition.
    #[error("must hold 1 to {max} different entries")]
    Distinct {
        /// Most entries.
        max: usize,
    },
    /// A collection of bounded size.
    #[error("must hold at most {max} entries")]
    Entries {
        /// Most entries.
        max: usize,
    },
    /// At least one target must get requests.
    #[error("must give at least one target a weight above zero")]
    Weights,
    /// A scope that this kind of key cannot carry.
    #[error("holds a scope that this kind of key cannot carry")]
    Scope,
    /// An end in the future, not absurdly far.
    #[error("must lie after now and at most {max_days} days ahead")]
    Expiry {
        /// Longest life.
        max_days: i64,
    },
    /// A node's address.
    #[error("must be http:// or https:// and host:port")]
    Address,
    /// A public key.
    #[error("must be an Ed25519 public key, 43 characters of base64url")]
    PublicKey,
}

impl Refusal {
    /// Whose fault it is and what the caller may do.
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Absent { .. } => ErrorClass::NotFound,
            Self::Invalid { .. } | Self::RetroactivePrice { .. } => ErrorClass::Invalid,
            Self::Exists { .. } | Self::State { .. } | Self::SigningKeyInUse { .. } => ErrorClass::Conflict,
        }
    }
}

pub(crate) fn invalid(field: &'static str, rule: Rule) -> Refusal {
    Refusal::Invalid { field, rule }
}
