//! Table `versions`.

use sqlx::PgConnection;
use weir_domain::version::{Artifact, VersionEvent};

use super::{Place, StoreError, signed};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &VersionEvent,
) -> Result<(), StoreError> {
    let VersionEvent::Created { id, model, artifact, created_at } = event;
    let Artifact { weights_uri, digest, dtype, parameter_count, context_limit, tokenizer_digest } = artifact;
    sqlx::query(
        "INSERT INTO versions (version_id, version, model_id, weights_uri, digest, dtype, parameter_count,
         context_limit, tokenizer_digest, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(id.to_string())
    .bind(place.version)
    .bind(model.to_string())
    .bind(weights_uri)
    .bind(digest)
    .bind(dtype)
    .bind(signed(*parameter_count))
    .bind(i64::from(*context_limit))
    .bind(tokenizer_digest)
    .bind(created_at)
    .execute(connection)
    .await?;
    Ok(())
}
