//! Pinned versions: immutable artifacts of models.

pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::version::ModelVersion;

use crate::store::versions::VersionRow;

/// A pinned version.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelVersion)]
pub(crate) struct VersionView {
    /// Its id.
    #[schema(example = "ver_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// The model that it is a version of.
    pub(crate) model_id: String,
    /// Where workers read the weights.
    pub(crate) weights_uri: String,
    /// `sha256:…` of the weights.
    pub(crate) digest: String,
    /// Storage type of most weights.
    pub(crate) dtype: String,
    /// Number of parameters.
    pub(crate) parameter_count: u64,
    /// Longest sequence, in tokens.
    pub(crate) context_limit: u32,
    /// `sha256:…` of the model text that gateways tokenise with.
    pub(crate) tokenizer_digest: String,
    /// When it was pinned.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&ModelVersion> for VersionView {
    fn from(version: &ModelVersion) -> Self {
        let artifact = version.artifact.clone();
        Self {
            id: version.id.to_string(),
            model_id: version.model.to_string(),
            weights_uri: artifact.weights_uri,
            digest: artifact.digest,
            dtype: artifact.dtype,
            parameter_count: artifact.parameter_count,
            context_limit: artifact.context_limit,
            tokenizer_digest: artifact.tokenizer_digest,
            created_at: version.created_at,
        }
    }
}

impl From<VersionRow> for VersionView {
    fn from(row: VersionRow) -> Self {
        Self {
            id: row.version_id,
            model_id: row.model_id,
            weights_uri: row.weights_uri,
            digest: row.digest,
            dtype: row.dtype,
            parameter_count: row.parameter_count.unsigned_abs(),
            context_limit: u32::try_from(row.context_limit).unwrap_or(u32::MAX),
            tokenizer_digest: row.tokenizer_digest,
            created_at: row.created_at,
        }
    }
}
