//! Tenants: made and changed by operators, shown to themselves.

pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod update;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::tenant::Tenant;
use weir_schemas::config_snapshot::TenantState;

use super::schema::{LimitsBody, ModelLimitsBody, TenantStateName, by_model};
use crate::store::tenants::TenantRow;

/// A tenant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub(crate) struct TenantView {
    /// Its id.
    #[schema(example = "ten_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// Its name; unique.
    #[schema(example = "acme")]
    pub(crate) name: String,
    /// Whether it is served.
    #[schema(value_type = TenantStateName)]
    pub(crate) state: String,
    /// Its share among active tenants.
    pub(crate) weight: u32,
    /// Its limits.
    #[schema(inline = false)]
    pub(crate) limits: LimitsBody,
    /// Its limits on single models, by the name that clients call them by; they hold beside the limits over all.
    pub(crate) model_limits: ModelLimitsBody,
    /// Whether a smaller model may answer when the one that is asked for is overloaded.
    pub(crate) may_overflow: bool,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&Tenant> for TenantView {
    fn from(tenant: &Tenant) -> Self {
        let state = match tenant.state {
            TenantState::Active => "active",
            TenantState::Suspended => "suspended",
        };
        Self {
            id: tenant.id.to_string(),
            name: tenant.name.clone(),
            state: state.to_owned(),
            weight: tenant.weight,
            limits: tenant.limits.into(),
            model_limits: by_model(tenant.model_limits.clone()),
            may_overflow: tenant.may_overflow,
            created_at: tenant.created_at,
        }
    }
}

impl From<TenantRow> for TenantView {
    fn from(row: TenantRow) -> Self {
        Self {
            id: row.tenant_id,
            name: row.name,
            state: row.state,
            weight: u32::try_from(row.weight).unwrap_or(u32::MAX),
            limits: row.limits.0.into(),
            model_limits: by_model(row.model_limits.0),
            may_overflow: row.may_overflow,
            created_at: row.created_at,
        }
    }
}
