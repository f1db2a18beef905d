//! `POST /api/v1/platform/keys`

use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_domain::key::KeyRecord;
use weir_domain::platform::{Platform, PlatformCommand, PlatformId};
use weir_schemas::config_snapshot::{Limits, ModelLimits, Scope};
use weir_schemas::ids::KeyId;

use super::PlatformKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, Started, Write};

/// Life of an operator's key that states none.
const DEFAULT_LIFE: TimeDelta = TimeDelta::days(365);

/// An operator's key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreatePlatformKey {
    /// For people.
    #[schema(example = "alice", min_length = 1, max_length = 128)]
    name: String,
    /// When it ends; a year from now if absent, ten years at most.
    expires_at: Option<DateTime<Utc>>,
}

/// A new operator's key with its token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedPlatformKey {
    #[serde(flatten)]
    key: PlatformKeyView,
    /// The token, shown this once; a repeat under the same Idempotency-Key carries none.
    token: Option<String>,
}

/// Make an operator's key. Its token is shown once.
#[utoipa::path(post, path = "/api/v1/platform/keys", tag = "platform", request_body = CreatePlatformKey,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same key, without its token.")),
    responses((status = 201, body = CreatedPlatformKey), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn create_platform_key(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<CreatePlatformKey>,
) -> Result<Response, Problem> {
    let mut write = match Write::begin(&app, &admin.caller, headers, &digest).await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let minter = app.signer.minter(&mut write.transaction).await?;
    let created_at = write.transaction.now();
    let key = KeyRecord {
        id: KeyId::new(created_at),
        name: body.name,
        scopes: vec![Scope::PlatformAdmin],
        limits: Limits::default(),
        model_limits: ModelLimits::new(),
        signing_key: minter.kid,
        created_at,
        expires_at: body.expires_at.unwrap_or(created_at + DEFAULT_LIFE),
    };
    let command = PlatformCommand::CreateKey { key: key.clone().into() };
    let changed = write.execute::<Platform>(PlatformId, command).await?;
    let token = minter.platform_token(&key)?;
    let location = format!("/api/v1/platform/keys/{}", key.id);
    let shown = CreatedPlatformKey { key: PlatformKeyView::from(&key), token: Some(token) };
    let kept = CreatedPlatformKey { key: PlatformKeyView::from(&key), token: None };
    write.finish_once(changed.version, Reply::created(location, shown), kept).await
}
