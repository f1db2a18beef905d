//! Signing keys: public parts, rotation with overlap, retirement.

pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod retire;
pub(crate) mod rotate;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::signing_key::SigningKey;

use crate::store::signing_keys::SigningKeyRow;

/// A signing key's public part and state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SigningKey)]
pub(crate) struct SigningKeyView {
    /// Its id: the tokens' `kid`.
    #[schema(example = "sig_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// Ed25519 public key, base64url without padding.
    pub(crate) public_key: String,
    /// `active` signs and verifies, `retiring` only verifies, `retired` neither.
    #[schema(example = "active")]
    pub(crate) state: String,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&SigningKey> for SigningKeyView {
    fn from(key: &SigningKey) -> Self {
        Self {
            id: key.id.to_string(),
            public_key: key.public_key.clone(),
            state: key.state.as_str().to_owned(),
            created_at: key.created_at,
        }
    }
}

impl From<SigningKeyRow> for SigningKeyView {
    fn from(row: SigningKeyRow) -> Self {
        Self {
            id: row.signing_key_id,
            public_key: row.public_key,
            state: row.state,
            created_at: row.created_at,
        }
    }
}
