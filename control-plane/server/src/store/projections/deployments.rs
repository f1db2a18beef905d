//! Table `deployments`.

use sqlx::PgConnection;
use sqlx::types::Json;
use weir_domain::deployment::DeploymentEvent;

use super::{Place, StoreError, signed};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &DeploymentEvent,
) -> Result<(), StoreError> {
    let changed = match event {
        DeploymentEvent::Created { id, version, pool, replicas, slo, overload, created_at } => sqlx::query(
            "INSERT INTO deployments
             (deployment_id, version, version_id, pool, replicas, ttft_ms, itl_ms, overload, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(id.to_string())
        .bind(place.version)
        .bind(version.to_string())
        .bind(pool)
        .bind(i64::from(*replicas))
        .bind(signed(slo.ttft_ms))
        .bind(signed(slo.itl_ms))
        .bind(Json(overload))
        .bind(created_at),
        DeploymentEvent::Scaled { replicas } => {
            sqlx::query("UPDATE deployments SET version = $2, replicas = $3 WHERE deployment_id = $1")
                .bind(place.stream)
                .bind(place.version)
                .bind(i64::from(*replicas))
        }
        DeploymentEvent::SloSet { slo } => sqlx::query(
            "UPDATE deployments SET version = $2, ttft_ms = $3, itl_ms = $4 WHERE deployment_id = $1",
        )
        .bind(place.stream)
        .bind(place.version)
        .bind(signed(slo.ttft_ms))
        .bind(signed(slo.itl_ms)),
        DeploymentEvent::OverloadSet { overload } => {
            sqlx::query("UPDATE deployments SET version = $2, overload = $3 WHERE deployment_id = $1")
                .bind(place.stream)
                .bind(place.version)
                .bind(Json(overload))
        }
        DeploymentEvent::Deleted {} => {
            sqlx::query("DELETE FROM deployments WHERE deployment_id = $1").bind(place.stream)
        }
    };
    changed.execute(connection).await?;
    Ok(())
}
