//! `POST /api/v1/tenants`

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::tenant::{Tenant, TenantCommand};
use weir_schemas::ids::TenantId;

use super::TenantView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{LimitsBody, ModelLimitsBody, ReadProblems, WriteProblems, by_model};
use crate::http::write::{Reply, single};

const fn one() -> u32 {
    1
}

/// A tenant to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateTenant {
    /// Its name; unique.
    #[schema(example = "acme", min_length = 1, max_length = 128)]
    name: String,
    /// Its share among active tenants.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 10000, default = 1)]
    weight: u32,
    /// Its limits.
    #[serde(default)]
    limits: LimitsBody,
    /// Its limits on single models, by the name that clients call them by; at most 100. A model need not exist yet.
    #[serde(default)]
    model_limits: ModelLimitsBody,
}

/// Make a tenant. It is active at once and has no keys.
#[utoipa::path(post, path = "/api/v1/tenants", tag = "tenants", request_body = CreateTenant,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = TenantView, headers(("ETag" = String), ("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_tenant(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateTenant>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let id = TenantId::new(now);
    let command = TenantCommand::Create {
        id,
        name: body.name,
        weight: body.weight,
        limits: body.limits.into(),
        model_limits: by_model(body.model_limits),
        now,
    };
    single::<Tenant, _>(&app, &admin.caller, (headers, &digest), (id, command), |tenant| {
        Reply::created(format!("/api/v1/tenants/{id}"), tenant.map(TenantView::from))
    })
    .await
}
