//! The ledger's tables, read as an auditor would: straight from Postgres.

use rust_decimal::Decimal;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row};

use crate::installation::Installation;
use crate::wait::until;

/// What was charged for one request.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the columns' names")]
pub struct Charge {
    pub request_id: String,
    pub tenant_id: String,
    pub version_id: String,
    pub finish_reason: String,
    pub prompt_tokens: i64,
    pub cached_prompt_tokens: i64,
    pub generated_tokens: i64,
    pub amount: Decimal,
    pub prompt_per_million: Option<Decimal>,
    pub cached_prompt_per_million: Option<Decimal>,
    pub generated_per_million: Option<Decimal>,
}

impl Charge {
    /// The amount that its own tokens and prices give.
    pub fn expected_amount(&self) -> Decimal {
        let price = |price: Option<Decimal>, tokens: i64| price.unwrap_or_default() * Decimal::from(tokens);
        let uncached = self.prompt_tokens - self.cached_prompt_tokens;
        let sum = price(self.prompt_per_million, uncached)
            + price(self.cached_prompt_per_million, self.cached_prompt_tokens)
            + price(self.generated_per_million, self.generated_tokens);
        sum / Decimal::from(1_000_000)
    }
}

/// What a worker says it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns' names")]
pub struct Execution {
    pub request_id: String,
    pub outcome: String,
    pub prompt_tokens: i64,
    pub cached_tokens: i64,
    pub computed_tokens: i64,
    pub generated_tokens: i64,
}

/// A reader of the ledger.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The database, for what has no method here.
    pub pool: PgPool,
}

impl Ledger {
    /// Of this installation.
    pub async fn of(installation: &Installation) -> Self {
        let pool =
            PgPoolOptions::new().max_connections(2).connect(&installation.database_url()).await.unwrap();
        Self { pool }
    }

    /// Every charge row of a tenant, oldest first.
    pub async fn charges(&self, tenant: &str) -> Vec<Charge> {
        let rows = sqlx::query(
            "SELECT * FROM ledger_charges WHERE tenant_id = $1 ORDER BY received_at, request_id, entry",
        )
        .bind(tenant)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        rows.iter()
            .map(|row| Charge {
                request_id: row.get("request_id"),
                tenant_id: row.get("tenant_id"),
                version_id: row.get("version_id"),
                finish_reason: row.get("finish_reason"),
                prompt_tokens: row.get("prompt_tokens"),
                cached_prompt_tokens: row.get("cached_prompt_tokens"),
                generated_tokens: row.get("generated_tokens"),
                amount: row.get("amount"),
                prompt_per_million: row.get("prompt_per_million"),
                cached_prompt_per_million: row.get("cached_prompt_per_million"),
                generated_per_million: row.get("generated_per_million"),
            })
            .collect()
    }

    /// Every execution row of a tenant.
    pub async fn executions(&self, tenant: &str) -> Vec<Execution> {
        let rows = sqlx::query(
            "SELECT * FROM ledger_executions WHERE tenant_id = $1 ORDER BY started_at, request_id",
        )
        .bind(tenant)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        rows.iter()
            .map(|row| Execution {
                request_id: row.get("request_id"),
                outcome: row.get("outcome"),
                prompt_tokens: row.get("prompt_tokens"),
                cached_tokens: row.get("cached_tokens"),
                computed_tokens: row.get("computed_tokens"),
                generated_tokens: row.get("generated_tokens"),
            })
            .collect()
    }

    /// Waits until the tenant has exactly this many charges and executions.
    pub async fn settled(
        &self,
        tenant: &str,
        charges: usize,
        executions: usize,
    ) -> (Vec<Charge>, Vec<Execution>) {
        until(&format!("{charges} charges and {executions} executions of {tenant}"), || async {
            let found = (self.charges(tenant).await, self.executions(tenant).await);
            (found.0.len() == charges && found.1.len() == executions).then_some(found)
        })
        .await
    }
}
