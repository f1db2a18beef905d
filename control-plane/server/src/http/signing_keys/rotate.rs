//! `POST /api/v1/signing-keys/rotate`

use axum::extract::State;
use axum::response::Response;
use weir_domain::signing_key::{SigningKey, SigningKeyCommand};
use weir_schemas::error_class::ErrorClass;

use super::SigningKeyView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::WriteHeaders;
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, Started, Write};

/// Make a new signing key; the active ones only verify from then on, so that their tokens stay good.
#[utoipa::path(post, path = "/api/v1/signing-keys/rotate", tag = "signing keys",
    params(("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = SigningKeyView), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn rotate_signing_keys(
    admin: PlatformAdmin,
    State(app): State<App>,
    headers: WriteHeaders,
) -> Result<Response, Problem> {
    let mut write = match Write::begin(&app, &admin.caller, headers, "").await? {
        Started::Fresh(write) => write,
        Started::Repeat(response) => return Ok(response),
    };
    let retiring = write.transaction.active_signing_keys().await?;
    for &id in &retiring {
        write.execute::<SigningKey>(id, SigningKeyCommand::BeginRetiring).await?;
    }
    let id = app.signer.create(&mut write.transaction).await?;
    let made = write.transaction.aggregate::<SigningKey>(id).await?;
    let (key, version) = made.ok_or_else(|| Problem::of(ErrorClass::Internal, "the new key is not there"))?;
    let location = format!("/api/v1/signing-keys/{id}");
    let response = write.finish(version, Reply::created(location, SigningKeyView::from(&key))).await?;
    // What signs no more is not kept: it could only be stolen.
    for id in retiring {
        app.signer.forget(id)?;
    }
    Ok(response)
}
