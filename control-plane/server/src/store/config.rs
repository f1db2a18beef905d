//! Reads everything that a config snapshot holds, as of one moment: one REPEATABLE READ transaction.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection};
use weir_schemas::config_snapshot::{
    Alias, ConfigSnapshot, Deployment, Key, Limits, ModelLimits, Overload, PinnedVersion, QuotaLease,
    Replica, Resources, Revision, Scope, Slo, Tenant, TenantState, VerificationKey,
};
use weir_schemas::ids::GatewayId;

use super::error::StoreError;
use super::page::{id, unsigned};
use super::{Store, aliases, event_log};
use crate::scope::PlatformScope;

/// What every token carries besides its own claims.
#[derive(Debug, Clone)]
pub(crate) struct TokenIdentity {
    /// `iss`.
    pub(crate) issuer: String,
    /// `aud`.
    pub(crate) audience: String,
}

impl Store {
    /// Everything there is to publish at `now`, expired keys left out, and the ids of the nodes in service.
    pub(crate) async fn config_snapshot(
        &self,
        scope: PlatformScope,
        tokens: &TokenIdentity,
        now: DateTime<Utc>,
    ) -> Result<(ConfigSnapshot, HashSet<String>), StoreError> {
        let mut transaction = self.read(scope).await?;
        let connection = &mut *transaction;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .execute(&mut *connection)
            .await?;
        let epoch: i64 =
            sqlx::query_scalar("SELECT epoch FROM installation").fetch_one(&mut *connection).await?;
        let revision = Revision {
            epoch: unsigned(epoch, "epoch")?,
            position: event_log::last_position(connection).await?,
        };
        let tenants = tenants(connection).await?;
        let nodes = nodes(connection).await?;
        let resources = Resources {
            keys: keys(connection, now).await?,
            verification_keys: verification_keys(connection, tokens).await?,
            aliases: all_aliases(connection).await?,
            versions: versions(connection).await?,
            deployments: deployments(connection).await?,
            replicas: replicas(&nodes)?,
            leases: leases(&tenants, &nodes)?,
            budgets: Vec::new(),
            tenants,
        };
        let in_service = nodes.into_iter().map(|node| node.node_id).collect();
        Ok((ConfigSnapshot { revision, resources }, in_service))
    }
}

type TenantColumns = (String, String, i64, Json<Limits>, Json<ModelLimits>, bool);

async fn tenants(connection: &mut PgConnection) -> Result<Vec<Tenant>, StoreError> {
    let rows: Vec<TenantColumns> = sqlx::query_as(
        "SELECT tenant_id, state, weight, limits, model_limits, may_overflow FROM tenants ORDER BY tenant_id",
    )
    .fetch_all(connection)
    .await?;
    let tenant = |(tenant, state, weight, limits, model_limits, may_overflow): TenantColumns| {
        Ok(Tenant {
            id: id(&tenant)?,
            state: if state == "active" { TenantState::Active } else { TenantState::Suspended },
            weight: unsigned(weight, "weight")?,
            limits: limits.0,
            may_overflow,
            model_limits: model_limits.0,
        })
    };
    rows.into_iter().map(tenant).collect()
}

type KeyColumns = (String, String, Json<Vec<Scope>>, Json<Limits>, Json<ModelLimits>, DateTime<Utc>);

async fn keys(connection: &mut PgConnection, now: DateTime<Utc>) -> Result<Vec<Key>, StoreError> {
    let rows: Vec<KeyColumns> = sqlx::query_as(
        "SELECT key_id, tenant_id, scopes, limits, model_limits, expires_at FROM keys
         WHERE revoked_at IS NULL AND expires_at > $1 ORDER BY key_id",
    )
    .bind(now)
    .fetch_all(connection)
    .await?;
    let key = |(key, tenant, scopes, limits, model_limits, expires_at): KeyColumns| {
        Ok(Key {
            id: id(&key)?,
            tenant: id(&tenant)?,
            scopes: scopes.0,
            limits: limits.0,
            model_limits: model_limits.0,
            expires_at,
        })
    };
    rows.into_iter().map(key).collect()
}

async fn verification_keys(
    connection: &mut PgConnection,
    tokens: &TokenIdentity,
) -> Result<Vec<VerificationKey>, StoreError> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT signing_key_id, public_key FROM signing_keys WHERE state <> 'retired' ORDER BY signing_key_id",
    )
    .fetch_all(connection)
    .await?;
    let key = |(kid, x): (String, String)| {
        Ok(VerificationKey {
            kid: id(&kid)?,
            x,
            issuer: tokens.issuer.clone(),
            audience: tokens.audience.clone(),
        })
    };
    rows.into_iter().map(key).collect()
}

async fn all_aliases(connection: &mut PgConnection) -> Result<Vec<Alias>, StoreError> {
    let rows: Vec<aliases::AliasRow> =
        sqlx::query_as(&format!("{} ORDER BY alias_id", aliases::SELECT)).fetch_all(connection).await?;
    let alias = |row: aliases::AliasRow| {
        Ok(Alias {
            id: id(&row.alias_id)?,
            name: row.name,
            targets: row.targets.0,
            created_at: row.created_at,
        })
    };
    rows.into_iter().map(alias).collect()
}

#[derive(FromRow)]
struct VersionColumns {
    version_id: String,
    name: String,
    weights_uri: String,
    digest: String,
    dtype: String,
    parameter_count: i64,
    context_limit: i64,
    tokenizer_digest: String,
}

async fn versions(connection: &mut PgConnection) -> Result<Vec<PinnedVersion>, StoreError> {
    let rows: Vec<VersionColumns> = sqlx::query_as(
        "SELECT version_id, name, weights_uri, digest, dtype, parameter_count, context_limit, tokenizer_digest
         FROM versions JOIN models USING (model_id) ORDER BY version_id",
    )
    .fetch_all(connection)
    .await?;
    let version = |row: VersionColumns| {
        Ok(PinnedVersion {
            id: id(&row.version_id)?,
            model: row.name,
            weights_uri: row.weights_uri,
            digest: row.digest,
            dtype: row.dtype,
            parameter_count: unsigned(row.parameter_count, "parameter count")?,
            context_limit: unsigned(row.context_limit, "context limit")?,
            tokenizer_digest: row.tokenizer_digest,
        })
    };
    rows.into_iter().map(version).collect()
}

type DeploymentColumns = (String, String, String, i64, i64, i64, Json<Overload>);

async fn deployments(connection: &mut PgConnection) -> Result<Vec<Deployment>, StoreError> {
    let rows: Vec<DeploymentColumns> = sqlx::query_as(
        "SELECT deployment_id, version_id, pool, replicas, ttft_ms, itl_ms, overload FROM deployments
         ORDER BY deployment_id",
    )
    .fetch_all(connection)
    .await?;
    let deployment = |(deployment, version, pool, replicas, ttft_ms, itl_ms, overload): DeploymentColumns| {
        Ok(Deployment {
            id: id(&deployment)?,
            version: id(&version)?,
            pool,
            replicas: unsigned(replicas, "replicas")?,
            slo: Slo { ttft_ms: unsigned(ttft_ms, "SLO")?, itl_ms: unsigned(itl_ms, "SLO")? },
            overload: overload.0,
        })
    };
    rows.into_iter().map(deployment).collect()
}

#[derive(FromRow)]
struct NodeColumns {
    node_id: String,
    kind: String,
    instance: String,
    address: String,
    pool: String,
    registered_position: i64,
}

/// Every node in service, oldest registration first.
async fn nodes(connection: &mut PgConnection) -> Result<Vec<NodeColumns>, StoreError> {
    let rows = sqlx::query_as(
        "SELECT node_id, kind, instance, address, pool, registered_position FROM nodes
         WHERE retired_at IS NULL ORDER BY registered_position",
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

fn replicas(nodes: &[NodeColumns]) -> Result<Vec<Replica>, StoreError> {
    let replica = |node: &NodeColumns| {
        Ok(Replica {
            worker: id(&node.node_id)?,
            instance: id(&node.instance)?,
            address: node.address.clone(),
            pool: node.pool.clone(),
        })
    };
    nodes.iter().filter(|node| node.kind == "worker").map(replica).collect()
}

/// The longest-registered gateway in service holds each tenant's whole limit, any other none. The lease's epoch is
/// the position of that gateway's first registration: it grows whenever the leases move on.
fn leases(tenants: &[Tenant], nodes: &[NodeColumns]) -> Result<Vec<QuotaLease>, StoreError> {
    let Some(holder) = nodes.iter().find(|node| node.kind == "gateway") else { return Ok(Vec::new()) };
    let gateway: GatewayId = id(&holder.node_id)?;
    let epoch = unsigned(holder.registered_position, "position")?;
    // Only what adds up over gateways is shared out; the bounds of one request stand in the tenant's limits.
    let share = |limits: Limits| Limits { max_output_tokens: None, max_context_tokens: None, ..limits };
    let lease = |tenant: &Tenant| QuotaLease {
        tenant: tenant.id,
        gateway,
        epoch,
        share: share(tenant.limits),
        model_shares: tenant
            .model_limits
            .iter()
            .map(|(model, limits)| (model.clone(), share(*limits)))
            .collect(),
    };
    Ok(tenants.iter().map(lease).collect())
}
