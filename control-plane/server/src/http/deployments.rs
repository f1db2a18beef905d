//! Deployments: which pool of workers serves which pinned version.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
mod overload;
pub(crate) mod update;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::deployment::Deployment;

use overload::OverloadBody;

use super::schema::SloBody;
use crate::store::deployments::DeploymentRow;

/// A deployment.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Deployment)]
pub(crate) struct DeploymentView {
    /// Its id.
    #[schema(example = "dep_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// What is served.
    pub(crate) version_id: String,
    /// The workers that serve it: those started with this pool name.
    pub(crate) pool: String,
    /// Replicas wanted.
    pub(crate) replicas: u32,
    /// Latency targets.
    pub(crate) slo: SloBody,
    /// What is done with requests that would miss the target for the first token.
    pub(crate) overload: OverloadBody,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&Deployment> for DeploymentView {
    fn from(deployment: &Deployment) -> Self {
        Self {
            id: deployment.id.to_string(),
            version_id: deployment.version.to_string(),
            pool: deployment.pool.clone(),
            replicas: deployment.replicas,
            slo: deployment.slo.into(),
            overload: deployment.overload.clone().into(),
            created_at: deployment.created_at,
        }
    }
}

impl From<DeploymentRow> for DeploymentView {
    fn from(row: DeploymentRow) -> Self {
        Self {
            id: row.deployment_id,
            version_id: row.version_id,
            pool: row.pool,
            replicas: u32::try_from(row.replicas).unwrap_or(u32::MAX),
            slo: SloBody { ttft_ms: row.ttft_ms.unsigned_abs(), itl_ms: row.itl_ms.unsigned_abs() },
            overload: row.overload.0.into(),
            created_at: row.created_at,
        }
    }
}
