//! `PATCH /api/v1/tenants/{tenant_id}`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::tenant::{Tenant, TenantCommand};
use weir_schemas::config_snapshot::TenantState;
use weir_schemas::ids::TenantId;

use super::TenantView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{
    LimitsBody, ModelLimitsBody, ReadProblems, TenantStateName, WriteProblems, by_model,
};
use crate::http::write::{Reply, single};

/// What to change; what is absent stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateTenant {
    /// The new name.
    name: Option<String>,
    /// Whether it is served.
    #[schema(value_type = Option<TenantStateName>)]
    state: Option<TenantState>,
    /// Its share among active tenants.
    #[schema(minimum = 1, maximum = 10000)]
    weight: Option<u32>,
    /// Its limits, replacing all of the old ones.
    limits: Option<LimitsBody>,
    /// Its limits on single models, replacing all of the old ones.
    model_limits: Option<ModelLimitsBody>,
    /// Whether a smaller model may answer when the one that is asked for is overloaded and its deployment's policy is
    /// `overflow`.
    may_overflow: Option<bool>,
}

/// Change a tenant's name, state, weight or limits, or what it agreed to.
#[utoipa::path(patch, path = "/api/v1/tenants/{tenant_id}", tag = "tenants", request_body = UpdateTenant,
    params(("tenant_id" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on."),
        ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 200, body = TenantView, headers(("ETag" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn update_tenant(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<TenantId>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<UpdateTenant>,
) -> Result<Response, Problem> {
    let command = TenantCommand::Update {
        name: body.name,
        state: body.state,
        weight: body.weight,
        limits: body.limits.map(Into::into),
        model_limits: body.model_limits.map(by_model),
        may_overflow: body.may_overflow,
    };
    single::<Tenant, _>(&app, &admin.caller, (headers, &digest), (id, command), |tenant| {
        Reply::ok(tenant.map(TenantView::from))
    })
    .await
}
