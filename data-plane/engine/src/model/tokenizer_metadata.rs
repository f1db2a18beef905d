//! The tokenizer's share of a weight file, lifted out as plain data.

use weir_kernels::gguf::{Array, Metadata, Value};

use super::load_error::LoadError;

/// What a GGUF file says about its tokenizer and chat template, uninterpreted. The worker copies it into its own form,
/// so that it needs no knowledge of the file format.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerMetadata {
    /// `tokenizer.ggml.model`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre_tokenizer: Option<String>,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`; empty if absent.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`; empty if absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`; empty if absent.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_token_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot_token_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom_token_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown_token_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding_token_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos_token: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos_token: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl TokenizerMetadata {
    /// # Errors
    /// A required key is missing, or a key that is there has another type: an optional one too, for reading it as
    /// absent would change how text is cut.
    pub(super) fn read(metadata: &Metadata) -> Result<Self, LoadError> {
        let source = Optional(metadata);
        Ok(Self {
            model: metadata.text("tokenizer.ggml.model")?.to_owned(),
            pre_tokenizer: source.text("tokenizer.ggml.pre")?,
            tokens: metadata.texts("tokenizer.ggml.tokens")?.to_vec(),
            token_types: source.token_types()?,
            scores: source.array("tokenizer.ggml.scores", Metadata::f32s)?,
            merges: source.array("tokenizer.ggml.merges", Metadata::texts)?,
            bos_token_id: source.id("tokenizer.ggml.bos_token_id")?,
            eos_token_id: source.id("tokenizer.ggml.eos_token_id")?,
            eot_token_id: source.id("tokenizer.ggml.eot_token_id")?,
            eom_token_id: source.id("tokenizer.ggml.eom_token_id")?,
            unknown_token_id: source.id("tokenizer.ggml.unknown_token_id")?,
            padding_token_id: source.id("tokenizer.ggml.padding_token_id")?,
            add_bos_token: source.boolean("tokenizer.ggml.add_bos_token")?,
            add_eos_token: source.boolean("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: source.boolean("tokenizer.ggml.add_space_prefix")?,
            chat_template: source.text("tokenizer.chat_template")?,
        })
    }
}

/// Absent is fine, of another type is not.
struct Optional<'a>(&'a Metadata);

impl Optional<'_> {
    fn text(&self, key: &str) -> Result<Option<String>, LoadError> {
        self.0.get(key).map(|_| self.0.text(key).map(str::to_owned)).transpose().map_err(LoadError::from)
    }

    fn id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.0.get(key).map(|_| self.0.u32(key)).transpose().map_err(LoadError::from)
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.0.get(key).map(|_| self.0.boolean(key)).transpose().map_err(LoadError::from)
    }

    fn array<T: Clone>(
        &self,
        key: &str,
        read: impl for<'m> Fn(&'m Metadata, &str) -> Result<&'m [T], weir_kernels::gguf::MetadataError>,
    ) -> Result<Vec<T>, LoadError> {
        match self.0.get(key) {
            None => Ok(Vec::new()),
            Some(_) => Ok(read(self.0, key)?.to_vec()),
        }
    }

    /// Some writers store token types unsigned.
    fn token_types(&self) -> Result<Vec<i32>, LoadError> {
        let key = "tokenizer.ggml.token_type";
        if let Some(Value::Array(Array::U32(types))) = self.0.get(key) {
            return Ok(types.iter().map(|kind| i32::try_from(*kind).unwrap_or(i32::MAX)).collect());
        }
        self.array(key, Metadata::i32s)
    }
}
