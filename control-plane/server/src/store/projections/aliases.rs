//! Tables `aliases` and `alias_targets`.

use sqlx::PgConnection;
use weir_domain::alias::AliasEvent;
use weir_schemas::config_snapshot::AliasTarget;

use super::{Place, StoreError};

pub(super) async fn apply(
    connection: &mut PgConnection,
    place: Place<'_>,
    event: &AliasEvent,
) -> Result<(), StoreError> {
    match event {
        AliasEvent::Created { id, name, targets, created_at } => {
            sqlx::query("INSERT INTO aliases (alias_id, version, name, created_at) VALUES ($1, $2, $3, $4)")
                .bind(id.to_string())
                .bind(place.version)
                .bind(name)
                .bind(created_at)
                .execute(&mut *connection)
                .await?;
            insert_targets(connection, place, targets).await
        }
        AliasEvent::Retargeted { targets } => {
            sqlx::query("UPDATE aliases SET version = $2 WHERE alias_id = $1")
                .bind(place.stream)
                .bind(place.version)
                .execute(&mut *connection)
                .await?;
            sqlx::query("DELETE FROM alias_targets WHERE alias_id = $1")
                .bind(place.stream)
                .execute(&mut *connection)
                .await?;
            insert_targets(connection, place, targets).await
        }
        AliasEvent::Deleted {} => {
            sqlx::query("DELETE FROM aliases WHERE alias_id = $1")
                .bind(place.stream)
                .execute(connection)
                .await?;
            Ok(())
        }
    }
}

async fn insert_targets(
    connection: &mut PgConnection,
    place: Place<'_>,
    targets: &[AliasTarget],
) -> Result<(), StoreError> {
    for (ordinal, target) in (0i64..).zip(targets) {
        sqlx::query(
            "INSERT INTO alias_targets (alias_id, ordinal, version_id, weight) VALUES ($1, $2, $3, $4)",
        )
        .bind(place.stream)
        .bind(ordinal)
        .bind(target.version.to_string())
        .bind(i64::from(target.weight))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
