//! Models: families of pinned versions.

pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod list;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use weir_domain::model::Model;

use crate::store::models::ModelRow;

/// A model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
pub(crate) struct ModelView {
    /// Its id.
    #[schema(example = "mdl_01jzc0ffee0000000000000000")]
    pub(crate) id: String,
    /// Its name; unique.
    pub(crate) name: String,
    /// When it was made.
    pub(crate) created_at: DateTime<Utc>,
}

impl From<&Model> for ModelView {
    fn from(model: &Model) -> Self {
        Self { id: model.id.to_string(), name: model.name.clone(), created_at: model.created_at }
    }
}

impl From<ModelRow> for ModelView {
    fn from(row: ModelRow) -> Self {
        Self { id: row.model_id, name: row.name, created_at: row.created_at }
    }
}
