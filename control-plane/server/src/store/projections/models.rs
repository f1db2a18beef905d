//! Table `models`.

use sqlx::PgConnection;
use weir_domain::model::ModelEvent;

use super::{Place, StoreError};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &ModelEvent,
) -> Result<(), StoreError> {
    let ModelEvent::Created { id, name, created_at } = event;
    sqlx::query("INSERT INTO models (model_id, version, name, created_at) VALUES ($1, $2, $3, $4)")
        .bind(id.to_string())
        .bind(place.version)
        .bind(name)
        .bind(created_at)
        .execute(connection)
        .await?;
    Ok(())
}
