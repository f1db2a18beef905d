//! An open weight file: what can be known of a model before its weights are loaded.

use std::path::Path;

use weir_kernels::gguf::GgufFile;

use super::facts::ModelFacts;
use super::load_error::LoadError;
use super::tokenizer_metadata::TokenizerMetadata;

/// A mapped GGUF file whose facts have been checked.
#[derive(Debug)]
pub struct ModelFile {
    gguf: GgufFile,
    facts: ModelFacts,
}

impl ModelFile {
    /// Maps the file and reads its directory; weights stay on disk. The file must not change while this lives.
    ///
    /// # Errors
    /// [`LoadError`] if the file is not GGUF, or not a model that this build can run.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::new(GgufFile::open(path).map_err(LoadError::File)?)
    }

    /// The same over bytes in memory.
    ///
    /// # Errors
    /// As [`ModelFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, LoadError> {
        Self::new(GgufFile::from_bytes(bytes).map_err(LoadError::File)?)
    }

    fn new(gguf: GgufFile) -> Result<Self, LoadError> {
        let facts = ModelFacts::read(&gguf)?;
        Ok(Self { gguf, facts })
    }

    /// What the file says about the model.
    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// What the file says about text.
    ///
    /// # Errors
    /// A key is missing or has another type than it should.
    pub fn tokenizer_metadata(&self) -> Result<TokenizerMetadata, LoadError> {
        TokenizerMetadata::read(self.gguf.metadata())
    }

    pub(crate) fn gguf(&self) -> &GgufFile {
        &self.gguf
    }
}
