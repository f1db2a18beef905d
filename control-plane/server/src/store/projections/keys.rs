//! Tables `keys` and `platform_keys`: what is known of each issued token.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::types::Json;
use weir_domain::key::KeyRecord;
use weir_domain::platform::PlatformEvent;
use weir_domain::tenant::TenantEvent;
use weir_schemas::ids::KeyId;

use super::{Place, StoreError};

pub(super) async fn apply_tenant(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &TenantEvent,
) -> Result<(), StoreError> {
    match event {
        TenantEvent::KeyCreated { key } => {
            let KeyRecord { id, name, scopes, limits, model_limits, signing_key, created_at, expires_at } =
                key;
            sqlx::query(
                "INSERT INTO keys
                 (key_id, tenant_id, name, scopes, limits, model_limits, signing_key, created_at, expires_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            )
            .bind(id.to_string())
            .bind(place.stream)
            .bind(name)
            .bind(Json(scopes))
            .bind(Json(limits))
            .bind(Json(model_limits))
            .bind(signing_key.to_string())
            .bind(created_at)
            .bind(expires_at)
            .execute(connection)
            .await?;
            Ok(())
        }
        TenantEvent::KeyRevoked { key, revoked_at } => {
            revoke(connection, "UPDATE keys SET revoked_at = $2 WHERE key_id = $1", *key, *revoked_at).await
        }
        TenantEvent::Created { .. }
        | TenantEvent::Renamed { .. }
        | TenantEvent::WeightSet { .. }
        | TenantEvent::LimitsSet { .. }
        | TenantEvent::ModelLimitsSet { .. }
        | TenantEvent::MayOverflowSet { .. }
        | TenantEvent::StateSet { .. } => Ok(()),
    }
}

pub(super) async fn apply_platform(
    connection: &mut PgConnection,
    event: &PlatformEvent,
) -> Result<(), StoreError> {
    match event {
        PlatformEvent::KeyCreated { key } => {
            sqlx::query(
                "INSERT INTO platform_keys (key_id, name, signing_key, created_at, expires_at)
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(key.id.to_string())
            .bind(&key.name)
            .bind(key.signing_key.to_string())
            .bind(key.created_at)
            .bind(key.expires_at)
            .execute(connection)
            .await?;
            Ok(())
        }
        PlatformEvent::KeyRevoked { key, revoked_at } => {
            let sql = "UPDATE platform_keys SET revoked_at = $2 WHERE key_id = $1";
            revoke(connection, sql, *key, *revoked_at).await
        }
    }
}

async fn revoke(
    connection: &mut PgConnection,
    sql: &str,
    key: KeyId,
    revoked_at: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query(sql).bind(key.to_string()).bind(revoked_at).execute(connection).await?;
    Ok(())
}
