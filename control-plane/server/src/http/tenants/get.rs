//! `GET /api/v1/tenants/{tenant_id}`

use axum::extract::State;
use axum::response::Response;
use weir_domain::tenant::Tenant;

use super::TenantView;
use crate::auth::TenantReader;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{AsOfQuery, one};
use crate::http::schema::ReadProblems;
use crate::scope::ReadScope;

/// Show a tenant, now or as of a past moment.
#[utoipa::path(get, path = "/api/v1/tenants/{tenant_id}", tag = "tenants",
    params(("tenant_id" = String, Path), AsOfQuery),
    responses((status = 200, body = TenantView, headers(("ETag" = String))), ReadProblems),
    security(("token" = ["tenant:admin"]), ("token" = ["platform:admin"])))]
pub(crate) async fn get_tenant(
    reader: TenantReader,
    State(app): State<App>,
    Query(as_of): Query<AsOfQuery>,
) -> Result<Response, Problem> {
    let tenant = reader.scope.tenant();
    one::<Tenant, _>(&app, ReadScope::Tenant(reader.scope), tenant, &as_of, |state| TenantView::from(state))
        .await
}
