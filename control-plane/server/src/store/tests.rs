//! What only the store itself can show: a read under a tenant's proof runs as the role that row-level security holds
//! for, whatever the query forgets.

use chrono::DateTime;
use prometheus_client::metrics::histogram::Histogram;
use weir_domain::tenant::{Tenant, TenantCommand};
use weir_schemas::config_snapshot::{Limits, ModelLimits};
use weir_schemas::ids::TenantId;

use super::*;

#[path = "../../../../tests/support/private_postgres.rs"]
mod private_postgres;

#[tokio::test]
async fn a_tenants_read_is_behind_row_level_security() {
    let url = private_postgres::PrivatePostgres::shared().fresh_database();
    let store = Store::new(url.parse().unwrap(), Histogram::new([1.0]));
    store.migrate().await.unwrap();
    let now = DateTime::from_timestamp(1_790_000_000, 0).unwrap();
    let tenants = [TenantId::from_u128(1), TenantId::from_u128(2)];
    for id in tenants {
        let mut write = store.begin("test", now).await.unwrap();
        let (name, limits, model_limits) = (id.to_string(), Limits::default(), ModelLimits::new());
        let create = TenantCommand::Create { id, name, weight: 1, limits, model_limits, now };
        write.execute::<Tenant>(id, None, create).await.unwrap();
        write.commit().await.unwrap();
    }
    let mut transaction = store.read_as(TenantScope::proven(tenants[1])).await.unwrap();
    let seen: Vec<String> =
        sqlx::query_scalar("SELECT tenant_id FROM tenants").fetch_all(&mut *transaction).await.unwrap();
    assert_eq!(seen, [tenants[1].to_string()]);
    let role: String =
        sqlx::query_scalar("SELECT current_user::text").fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(role, "weir_tenant");
    // The role ends with the transaction: the pool's connections do not keep it.
    drop(transaction);
    for _ in 0..CONNECTIONS_MAX {
        let role: String =
            sqlx::query_scalar("SELECT current_user::text").fetch_one(&store.pool).await.unwrap();
        assert_eq!(role, "weir");
    }
    store.close().await;
}
