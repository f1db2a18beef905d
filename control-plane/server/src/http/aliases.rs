//! Aliases: the names that clients ask for.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod retarget;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_domain::alias::Alias;
use weir_schemas::config_snapshot::AliasTarget;
use weir_schemas::ids::VersionId;

use crate::store::aliases::AliasRow;

/// One weighted target.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AliasTarget)]
pub(crate) struct TargetBody {
    /// The pinned version.
    #[schema(value_type = String)]
    version_id: VersionId,
    /// Its share of the requests.
    #[schema(minimum = 0, maximum = 1000000, example = 1)]
    weight: u32,
}

/// An alias.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Alias)]
pub(crate) struct AliasView {
    /// Its id.
    #[schema(example = "als_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// The name that clients ask for.
    pub(crate) name: String,
    /// Where its requests go.
    pub(crate) targets: Vec<TargetBody>,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

fn target_bodies(targets: &[AliasTarget]) -> Vec<TargetBody> {
    let body = |target: &AliasTarget| TargetBody { version_id: target.version, weight: target.weight };
    targets.iter().map(body).collect()
}

fn targets(bodies: &[TargetBody]) -> Vec<AliasTarget> {
    let target = |body: &TargetBody| AliasTarget { version: body.version_id, weight: body.weight };
    bodies.iter().map(target).collect()
}

impl From<&Alias> for AliasView {
    fn from(alias: &Alias) -> Self {
        Self {
            id: alias.id.to_string(),
            name: alias.name.clone(),
            targets: target_bodies(&alias.targets),
            created_at: alias.created_at,
        }
    }
}

impl From<AliasRow> for AliasView {
    fn from(row: AliasRow) -> Self {
        Self {
            id: row.alias_id,
            name: row.name,
            targets: target_bodies(&row.targets.0),
            created_at: row.created_at,
        }
    }
}
