//! Table `signing_keys`: public parts and states.

use sqlx::PgConnection;
use weir_domain::signing_key::{SigningKeyEvent, SigningKeyState};

use super::{Place, StoreError};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &SigningKeyEvent,
) -> Result<(), StoreError> {
    let state = match event {
        SigningKeyEvent::Created { id, public_key, created_at } => {
            sqlx::query(
                "INSERT INTO signing_keys (signing_key_id, version, public_key, state, created_at)
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(id.to_string())
            .bind(place.version)
            .bind(public_key)
            .bind(SigningKeyState::Active.as_str())
            .bind(created_at)
            .execute(connection)
            .await?;
            return Ok(());
        }
        SigningKeyEvent::Retiring {} => SigningKeyState::Retiring,
        SigningKeyEvent::Retired {} => SigningKeyState::Retired,
    };
    sqlx::query("UPDATE signing_keys SET version = $2, state = $3 WHERE signing_key_id = $1")
        .bind(place.stream)
        .bind(place.version)
        .bind(state.as_str())
        .execute(connection)
        .await?;
    Ok(())
}
