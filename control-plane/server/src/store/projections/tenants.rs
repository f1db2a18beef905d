//! Table `tenants`.

use sqlx::PgConnection;
use sqlx::types::Json;
use weir_domain::tenant::TenantEvent;
use weir_schemas::config_snapshot::TenantState;

use super::{Place, StoreError};

const fn state_name(state: TenantState) -> &'static str {
    match state {
        TenantState::Active => "active",
        TenantState::Suspended => "suspended",
    }
}

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &TenantEvent,
) -> Result<(), StoreError> {
    let changed = match event {
        TenantEvent::Created { id, name, weight, limits, model_limits, created_at } => sqlx::query(
            "INSERT INTO tenants (tenant_id, version, name, state, weight, limits, model_limits, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(id.to_string())
        .bind(place.version)
        .bind(name)
        .bind(state_name(TenantState::Active))
        .bind(i64::from(*weight))
        .bind(Json(limits))
        .bind(Json(model_limits))
        .bind(created_at),
        TenantEvent::Renamed { name } => {
            update("UPDATE tenants SET version = $2, name = $3 WHERE tenant_id = $1", place).bind(name)
        }
        TenantEvent::StateSet { state } => {
            update("UPDATE tenants SET version = $2, state = $3 WHERE tenant_id = $1", place)
                .bind(state_name(*state))
        }
        TenantEvent::WeightSet { weight } => {
            update("UPDATE tenants SET version = $2, weight = $3 WHERE tenant_id = $1", place)
                .bind(i64::from(*weight))
        }
        TenantEvent::LimitsSet { limits } => {
            update("UPDATE tenants SET version = $2, limits = $3 WHERE tenant_id = $1", place)
                .bind(Json(limits))
        }
        TenantEvent::ModelLimitsSet { model_limits } => {
            update("UPDATE tenants SET version = $2, model_limits = $3 WHERE tenant_id = $1", place)
                .bind(Json(model_limits))
        }
        TenantEvent::MayOverflowSet { may_overflow } => {
            update("UPDATE tenants SET version = $2, may_overflow = $3 WHERE tenant_id = $1", place)
                .bind(may_overflow)
        }
        TenantEvent::KeyCreated { .. } | TenantEvent::KeyRevoked { .. } => {
            update("UPDATE tenants SET version = $2 WHERE tenant_id = $1", place)
        }
    };
    changed.execute(connection).await?;
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn update<'q>(sql: &'q str, place: Place<'q>) -> Query<'q> {
    sqlx::query(sql).bind(place.stream).bind(place.version)
}
