//! Operators' keys: scope `platform:admin`, the first of which is made at the installation's first start.

pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod revoke;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::key::KeyRecord;

use crate::store::keys::PlatformKeyRow;

/// An operator's key without its token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlatformKey)]
pub(crate) struct PlatformKeyView {
    /// Its id: the token's `jti`.
    pub(crate) id: String,
    /// For people.
    pub(crate) name: String,
    /// The signing key that made it.
    pub(crate) signing_key_id: String,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
    /// When it ends.
    pub(crate) expires_at: DateTime<Utc>,
    /// When it was revoked, if it was.
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

impl From<&KeyRecord> for PlatformKeyView {
    fn from(key: &KeyRecord) -> Self {
        Self {
            id: key.id.to_string(),
            name: key.name.clone(),
            signing_key_id: key.signing_key.to_string(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: None,
        }
    }
}

impl From<PlatformKeyRow> for PlatformKeyView {
    fn from(row: PlatformKeyRow) -> Self {
        Self {
            id: row.key_id,
            name: row.name,
            signing_key_id: row.signing_key,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        }
    }
}
