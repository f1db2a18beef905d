//! Table `nodes`: what each gateway and worker last said about itself.

use sqlx::PgConnection;
use weir_domain::node::{NodeEvent, NodeId};

use super::{Place, StoreError};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &NodeEvent,
) -> Result<(), StoreError> {
    match event {
        NodeEvent::Registered { id, registration, registered_at } => {
            let kind = match id {
                NodeId::Gateway(_) => "gateway",
                NodeId::Worker(_) => "worker",
            };
            // The first registration's time and position stay: leases go by seniority.
            sqlx::query(
                "INSERT INTO nodes (node_id, version, kind, instance, address, pool, registered_at,
                 registered_position) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                 ON CONFLICT (node_id) DO UPDATE SET version = excluded.version, instance = excluded.instance,
                 address = excluded.address, pool = excluded.pool",
            )
            .bind(place.stream)
            .bind(place.version)
            .bind(kind)
            .bind(registration.instance.to_string())
            .bind(&registration.address)
            .bind(&registration.pool)
            .bind(registered_at)
            .bind(place.position)
            .execute(connection)
            .await?;
        }
        NodeEvent::Retired { retired_at } => {
            sqlx::query("UPDATE nodes SET version = $2, retired_at = $3 WHERE node_id = $1")
                .bind(place.stream)
                .bind(place.version)
                .bind(retired_at)
                .execute(connection)
                .await?;
        }
    }
    Ok(())
}
