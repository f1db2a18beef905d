//! `POST /api/v1/tenants/{tenant_id}/keys`

use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_domain::key::KeyRecord;
use weir_domain::tenant::{Tenant, TenantCommand};
use weir_schemas::config_snapshot::Scope;
use weir_schemas::ids::KeyId;

use super::KeyView;
use crate::auth::{KeysWrite, TenantCaller};
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{LimitsBody, ModelLimitsBody, ReadProblems, ScopeName, WriteProblems, by_model};
use crate::http::write::{Reply, Started, Write};

/// Life of a key that states none.
const DEFAULT_LIFE: TimeDelta = TimeDelta::days(365);

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// For people.
    #[schema(example = "ci", min_length = 1, max_length = 128)]
    name: String,
    /// What it may do. `tenant:admin` can be given only by a caller that has it.
    #[schema(value_type = Vec<ScopeName>)]
    scopes: Vec<Scope>,
    /// Tighter limits than the tenant's.
    #[serde(default)]
    limits: LimitsBody,
    /// Tighter limits than the tenant's on single models, by the name that clients call them by; at most 100.
    #[serde(default)]
    model_limits: ModelLimitsBody,
    /// When it ends; a year from now if absent, ten years at most.
    expires_at: Option<DateTime<Utc>>,
}

/// A new key with its token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    #[serde(flatten)]
    key: KeyView,
    /// The token, shown this once. A repeat under the same Idempotency-Key carries none: revoke the key and make
    /// another if it was lost.
    token: Option<String>,
    /// What became of the token, for people.
    note: &'static str,
}

const SHOWN_ONCE: &str = "keep the token: it is shown only now";
const NOT_SHOWN_AGAIN: &str = "this repeats an earlier answer; the token was shown then and is not stored. Revoke the key and make another if it was lost";

/// Make a key. Its token is shown once.
#[utoipa::path(post, path = "/api/v1/tenants/{tenant_id}/keys", tag = "keys", request_body = CreateKey,
    params(("tenant_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same key, without its token.")),
    responses((status = 201, body = CreatedKey, headers(("Location" = String))), ReadProblems, WriteProblems),
    security(("token" = ["keys:write"]), ("token" = ["platform:admin"])))]
pub(crate) async fn create_key(
    caller: TenantCaller<KeysWrite>,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreateKey>,
) -> Result<Response, Problem> {
    if body.scopes.contains(&Scope::TenantAdmin) && !caller.caller.may(Scope::TenantAdmin) {
        return Err(Problem::scope(Scope::TenantAdmin));
    }
    let tenant = caller.scope.tenant();
    let mut write = match Write::begin(&app, &caller.caller, headers, &digest).await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let minter = app.signer.minter(&mut write.transaction).await?;
    let created_at = write.transaction.now();
    let key = KeyRecord {
        id: KeyId::new(created_at),
        name: body.name,
        scopes: body.scopes,
        limits: body.limits.into(),
        model_limits: by_model(body.model_limits),
        signing_key: minter.kid,
        created_at,
        expires_at: body.expires_at.unwrap_or(created_at + DEFAULT_LIFE),
    };
    let command = TenantCommand::CreateKey { key: key.clone() };
    let changed = write.execute::<Tenant>(tenant, command).await?;
    let token = minter.tenant_token(tenant, &key)?;
    let location = format!("/api/v1/tenants/{tenant}/keys/{}", key.id);
    let shown = CreatedKey { key: KeyView::from(&key), token: Some(token), note: SHOWN_ONCE };
    let kept = CreatedKey { key: KeyView::from(&key), token: None, note: NOT_SHOWN_AGAIN };
    write.finish_once(changed.version, Reply::created(location, shown), kept).await
}
