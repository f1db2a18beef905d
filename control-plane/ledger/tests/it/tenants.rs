//! What a tenant may see, and that nobody rewrites history.

use weir_schemas::ids::TenantId;

use crate::support::{Ledger, TENANT, charge};

#[tokio::test]
async fn a_tenant_reads_its_own_rows_and_nothing_else() {
    let ledger = Ledger::start().await;
    let other = TenantId::from_u128(77);
    ledger
        .append([
            charge(1, |_| ()),
            charge(2, |data| data.tenant = other),
            charge(3, |data| data.tenant = other),
        ])
        .await;
    for table in ["ledger_charges", "ledger_usage_minutes", "ledger_goodput_minutes"] {
        let seen_by = async |tenant: &str| -> Vec<String> {
            let mut transaction = ledger.pool.begin().await.unwrap();
            sqlx::query(
                "SELECT set_config('weir.tenant_id', $1, true), set_config('role', 'weir_tenant', true)",
            )
            .bind(tenant)
            .execute(&mut *transaction)
            .await
            .unwrap();
            let sql = format!("SELECT DISTINCT tenant_id FROM {table}");
            sqlx::query_scalar(&sql).fetch_all(&mut *transaction).await.unwrap()
        };
        assert_eq!(seen_by(&TENANT.to_string()).await, [TENANT.to_string()], "{table}");
        assert_eq!(seen_by(&other.to_string()).await, [other.to_string()], "{table}");
        assert!(seen_by("").await.is_empty(), "{table}");
    }
    let hidden = [
        "ledger_senders",
        "ledger_sequences",
        "ledger_unpriced",
        "ledger_executions",
        "ledger_rejections",
        "ledger_dead_letters",
    ];
    for table in hidden {
        let mut transaction = ledger.pool.begin().await.unwrap();
        sqlx::query("SET LOCAL ROLE weir_tenant").execute(&mut *transaction).await.unwrap();
        let refused =
            sqlx::query(&format!("SELECT FROM {table}")).execute(&mut *transaction).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "42501", "{table}");
    }
}

#[tokio::test]
async fn rows_once_written_are_never_changed() {
    let ledger = Ledger::start().await;
    ledger.append([charge(1, |_| ()), charge(2, |data| data.prompt_tokens = 1)]).await;
    let attempts = [
        "UPDATE ledger_charges SET amount = 0",
        "UPDATE ledger_charges SET generated_tokens = 1",
        "DELETE FROM ledger_charges",
        "TRUNCATE ledger_charges",
        "DELETE FROM ledger_sequences",
        "DELETE FROM ledger_dead_letters",
        "TRUNCATE ledger_executions",
    ];
    for sql in attempts {
        let refused = sqlx::query(sql).execute(&ledger.pool).await.unwrap_err();
        assert!(refused.to_string().contains("never changed"), "{sql}: {refused}");
    }
    assert_eq!(ledger.count("ledger_charges").await, 1);
}
