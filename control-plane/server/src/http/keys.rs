//! A tenant's keys: for the tenant itself (`keys:write`) and for operators. A token is shown once, when its key is
//! made; only its id is stored.

pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod revoke;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::key::KeyRecord;
use weir_schemas::config_snapshot::Scope;

use super::schema::{LimitsBody, ModelLimitsBody, ScopeName, by_model};
use crate::store::keys::KeyRow;

/// A key without its token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyView {
    /// Its id: the token's `jti`.
    #[schema(example = "key_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// For people.
    pub(crate) name: String,
    /// What it may do.
    #[schema(value_type = Vec<ScopeName>)]
    pub(crate) scopes: Vec<Scope>,
    /// Tighter limits than the tenant's.
    pub(crate) limits: LimitsBody,
    /// Tighter limits than the tenant's on single models, by the name that clients call them by.
    pub(crate) model_limits: ModelLimitsBody,
    /// The signing key that made it.
    pub(crate) signing_key_id: String,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
    /// When it ends.
    pub(crate) expires_at: DateTime<Utc>,
    /// When it was revoked, if it was.
    pub(crate) revoked_at: Option<DateTime<Utc>>,
}

impl From<&KeyRecord> for KeyView {
    fn from(key: &KeyRecord) -> Self {
        Self {
            id: key.id.to_string(),
            name: key.name.clone(),
            scopes: key.scopes.clone(),
            limits: key.limits.into(),
            model_limits: by_model(key.model_limits.clone()),
            signing_key_id: key.signing_key.to_string(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: None,
        }
    }
}

impl From<KeyRow> for KeyView {
    fn from(row: KeyRow) -> Self {
        Self {
            id: row.key_id,
            name: row.name,
            scopes: row.scopes.0,
            limits: row.limits.0.into(),
            model_limits: by_model(row.model_limits.0),
            signing_key_id: row.signing_key,
            created_at: row.created_at,
            expires_at: row.expires_at,
            revoked_at: row.revoked_at,
        }
    }
}
