//! What an operator needs to pin a file as a model version: `weir inspect FILE`.

use std::fs::File;
use std::path::Path;

use serde::Serialize;
use weir_engine::model::ModelFile;
use weir_text::TextModel;

use super::{ArtifactError, model_text, sha256};

/// The facts of a file, named as the admin API's model version names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// `file://` URI of the file.
    pub weights_uri: String,
    /// `sha256:…` of the file.
    pub digest: String,
    /// Storage type of most weights.
    pub dtype: String,
    /// Number of parameters.
    pub parameter_count: u64,
    /// Longest sequence, in tokens.
    pub context_limit: u32,
    /// `sha256:…` of the model text.
    pub tokenizer_digest: String,
    /// Model family, as the file names it.
    pub architecture: String,
    /// The model's own name, where the file has one.
    pub name: Option<String>,
    /// Length of the file.
    pub size_bytes: u64,
}

/// Reads the file's facts and hashes it. Fails on a file that a worker could not serve, tokenizer included.
pub fn inspect(path: &Path) -> Result<Inspection, ArtifactError> {
    let unreadable = |source| ArtifactError::Read { path: path.display().to_string(), source };
    let path = &path.canonicalize().map_err(unreadable)?;
    let file = File::open(path).map_err(unreadable)?;
    let size_bytes = file.metadata().map_err(unreadable)?.len();
    let model = ModelFile::open(path)
        .map_err(|source| ArtifactError::Model { path: path.display().to_string(), source })?;
    let text = model_text(&model, path)?;
    let tokenizer_digest = text.digest();
    TextModel::new(text)
        .map_err(|source| ArtifactError::Text { path: path.display().to_string(), source })?;
    let facts = model.facts();
    Ok(Inspection {
        weights_uri: format!("file://{}", path.display()),
        digest: sha256(file).map_err(unreadable)?,
        dtype: facts.dtype.clone(),
        parameter_count: facts.parameter_count,
        context_limit: facts.context_limit,
        tokenizer_digest,
        architecture: facts.architecture.clone(),
        name: facts.name.clone(),
        size_bytes,
    })
}
